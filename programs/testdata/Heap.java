import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import java.util.zip.CRC32;

/**
 * A Java machine with a busy heap under G1, which moves objects in threads of its own: blocks of memory with
 * checksums come and go, a pool adds, sockets and a child process echo, a timer ticks, stacks overflow and null is
 * followed, both of which the machine learns from guarded pages. What each step finds is what it left.
 */
public final class Heap {
    private static long steps;
    private static long ticks;
    private static String failure;

    private interface Step {
        void run(long n) throws Exception;
    }

    private static synchronized void done(Throwable why) {
        steps++;
        if (why != null && failure == null) {
            failure = why.toString().replace('\n', ' ');
        }
        Heap.class.notifyAll();
    }

    private static synchronized void more(int n) throws InterruptedException {
        for (long goal = steps + n, tick = ticks + 2; failure == null && (steps < goal || ticks < tick);) {
            Heap.class.wait();
        }
    }

    private static synchronized void tick() {
        ticks++;
        Heap.class.notifyAll();
    }

    private static void loop(Step s) {
        Thread t = new Thread(() -> {
            for (long n = 1; ; n++) {
                try {
                    s.run(n);
                    done(null);
                } catch (Throwable e) {
                    done(e);
                    return;
                }
            }
        });
        t.setDaemon(true);
        t.start();
    }

    private static void ensure(boolean good, String what) {
        if (!good) {
            throw new IllegalStateException(what);
        }
    }

    private static long sum(byte[] b) {
        CRC32 c = new CRC32();
        c.update(b);
        return c.getValue();
    }

    /** Replaces blocks of a set of them, which lives long enough to be moved. */
    private static Step churn(long seed) {
        Random random = new Random(seed);
        Map<Integer, byte[]> blocks = new HashMap<>();
        Map<Integer, Long> sums = new HashMap<>();
        return n -> {
            for (int i = 0; i < 200; i++) {
                int key = random.nextInt(2000);
                byte[] old = blocks.remove(key);
                ensure(old == null || sum(old) == sums.get(key), "block " + key + " has changed");
                byte[] block = new byte[random.nextInt(10000)];
                random.nextBytes(block);
                blocks.put(key, block);
                sums.put(key, sum(block));
            }
        };
    }

    private static int deep(int n) {
        return deep(n + 1) + 1;
    }

    private static void guarded(long n) {
        try {
            deep(0);
            ensure(false, "a stack without an end");
        } catch (StackOverflowError e) {
            String nothing = n < 0 ? "" : null;
            try {
                ensure(nothing.length() > 0, "null has a length");
            } catch (NullPointerException good) {
                return;
            }
        }
    }

    private static void add(long n) {
        long got = LongStream.rangeClosed(1, 50000).parallel().map(x -> x * n).sum();
        ensure(got == 1250025000L * n, "the pool adds to " + got);
    }

    private static Step socket() throws IOException {
        ServerSocket server = new ServerSocket(0);
        Socket client = new Socket("127.0.0.1", server.getLocalPort());
        Socket served = server.accept();
        DataInputStream in = new DataInputStream(served.getInputStream());
        DataOutputStream out = new DataOutputStream(served.getOutputStream());
        loop(n -> out.writeLong(in.readLong() * 2));
        DataInputStream replies = new DataInputStream(client.getInputStream());
        DataOutputStream requests = new DataOutputStream(client.getOutputStream());
        return n -> {
            requests.writeLong(n);
            long got = replies.readLong();
            ensure(got == 2 * n, "the server says " + got + " for " + n);
        };
    }

    private static Step child() throws IOException {
        Process cat = new ProcessBuilder("cat").redirectErrorStream(true).start();
        PrintWriter in = new PrintWriter(cat.getOutputStream(), true);
        BufferedReader out = new BufferedReader(new InputStreamReader(cat.getInputStream()));
        return n -> {
            in.println(n);
            String got = out.readLine();
            ensure(String.valueOf(n).equals(got), "the child says " + got + " for " + n);
        };
    }

    public static void main(String[] args) throws Exception {
        loop(churn(1));
        loop(churn(2));
        loop(Heap::guarded);
        loop(Heap::add);
        loop(socket());
        loop(child());
        Executors.newScheduledThreadPool(1, r -> {
            Thread t = new Thread(r);
            t.setDaemon(true);
            return t;
        }).scheduleAtFixedRate(Heap::tick, 5, 5, TimeUnit.MILLISECONDS);
        more(200); // the compiler has been at work
        List<String> kept = new ArrayList<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("0 ready");
        for (String line; (line = in.readLine()) != null;) {
            String[] words = line.split(" ");
            if (words[1].equals("mark")) {
                kept.add(words[2]);
                System.out.println(words[0] + " ok");
                continue;
            }
            more(50);
            System.out.println(words[0] + (failure == null ? " ok " + String.join(" ", kept) : " bad " + failure));
        }
    }
}
