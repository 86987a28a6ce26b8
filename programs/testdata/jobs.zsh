# zsh with jobs: an interactive zsh on a terminal of zpty's, in a variable of which
# the names are kept; a coprocess that computes; a pipe of a process substitution
# that is always full; a job that is stopped; a timer of sched's and a trap.
zmodload zsh/zpty zsh/sched zsh/system
setopt monitor

n=0
exec {numbers}< <(i=0; while print $((++i)); do :; done)

sleep 100000 &
stopped=$!
kill -STOP $stopped

coproc while read -r a b; do print $((a * b)); done

# The inner shell is asked, and answers, in lines between marks: its terminal
# echoes what is typed.
zpty inner zsh -f -i
ask() {
	local line
	zpty -w inner "$1; print -r \"<\${(j: :)kept}>\""
	while zpty -r inner line; do
		line=${line%$'\r\n'}
		[[ $line == \<*\> ]] && { REPLY=${line[2,-2]}; return }
	done
	return 1
}
ask "PS1= PS2= RPS1=; unsetopt zle prompt_cr prompt_sp; kept=()"

caught=0
TRAPUSR1() { caught=$((caught + 1)) }
typeset -F SECONDS

check() {
	local a k want
	for k in {1..10}; do
		read -r -u $numbers a
		n=$((n + 1))
		[[ $a == $n ]] || { print "bad the pipe holds $a where $n was to come"; return }
	done
	print -p "$n $n"
	read -r -p a
	[[ $a == $((n * n)) ]] || { print "bad the coprocess says $a for $n squared"; return }
	[[ ${(M)jobstates:#suspended*} == *$stopped=suspended* ]] || { print "bad no stopped job: $jobstates"; return }
	want=$((caught + 1))
	kill -USR1 $$
	[[ $caught == $want ]] || { print "bad $caught signals were caught, not $want"; return }
	ask : || { print "bad the inner shell has ended"; return }
	print -r "ok $REPLY"
}

print "0 ready"
while read -r number verb name; do
	case $verb in
	mark) ask "kept+=($name)" && print "$number ok" ;;
	check) check >/tmp/said.$$; print -r "$number $(</tmp/said.$$)" ;;
	esac
done
