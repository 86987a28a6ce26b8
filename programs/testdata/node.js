// node with timers, a worker thread, a child process with a channel, and an HTTP
// server with a client that keeps its connection.
const { Worker, isMainThread, parentPort } = require('worker_threads')
const { fork } = require('child_process')
const http = require('http')
const readline = require('readline')

if (!isMainThread) {
  parentPort.on('message', n => parentPort.postMessage(n * n))
} else if (process.argv[2] === 'child') {
  process.on('message', n => process.send(n + 1))
} else {
  main()
}

function main() {
  let steps = 0
  let failure = null
  const fail = why => { failure = failure || String(why) }
  const waiting = []
  const step = () => {
    steps++
    while (waiting.length && (failure || waiting[0].goal <= steps)) waiting.shift().go()
  }
  const more = n => new Promise(go => waiting.push({ goal: steps + n, go }))
  process.on('uncaughtException', e => fail(e.stack))

  const worker = new Worker(__filename)
  let w = 0
  worker.on('message', n => { if (n !== w * w) fail(`the worker says ${n} for ${w}`); step(); worker.postMessage(++w) })
  worker.on('exit', c => fail(`the worker has ended with ${c}`))
  worker.postMessage(w)

  const child = fork(__filename, ['child'])
  let c = 0
  child.on('message', n => { if (n !== c + 1) fail(`the child says ${n} for ${c}`); step(); child.send(c = n) })
  child.on('exit', code => fail(`the child has ended with ${code}`))
  child.send(c)

  let ticks = 0
  setInterval(() => { ticks++; step() }, 5)

  let answers = 0
  const sockets = new Set()
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const server = http.createServer((req, res) => { sockets.add(req.socket); res.end(req.url) })
  server.keepAliveTimeout = 0
  server.listen(0, '127.0.0.1', () => {
    let n = 0
    const get = () => http.get({ port: server.address().port, host: '127.0.0.1', path: `/${++n}`, agent }, res => {
      let body = ''
      res.on('data', d => { body += d })
      res.on('end', () => {
        if (body !== `/${n}`) fail(`the server says ${body} for /${n}`)
        if (sockets.size !== 1) fail(`${sockets.size} connections were made`)
        answers++
        step()
        setImmediate(get)
      })
    }).on('error', fail)
    get()
  })

  const kept = []
  console.log('0 ready')
  readline.createInterface({ input: process.stdin }).on('line', async line => {
    const [number, verb, name] = line.split(' ')
    if (verb === 'mark') {
      kept.push(name)
      console.log(`${number} ok`)
      return
    }
    if (verb === 'steps') {
      console.log(failure ? `${number} bad ${JSON.stringify(failure)}` : `${number} ok ${answers}`)
      return
    }
    const before = ticks
    await more(50)
    while (!failure && ticks < before + 2) await more(1)
    console.log(failure ? `${number} bad ${JSON.stringify(failure)}` : `${number} ok ${kept.join(' ')}`)
  })
}
