# A shell with jobs: one that counts into a pipe which is always full, one that
# is stopped, a coprocess that keeps the names, a subshell that waits for a
# signal.
set -m
dir=$(mktemp -d)
mkfifo "$dir/numbers" "$dir/caught"

i=0
while echo $((++i)); do :; done >"$dir/numbers" &
exec 5<"$dir/numbers"

sleep 100000 &
stopped=$!
kill -STOP $stopped

coproc names {
	kept=
	while read -r verb name; do
		case $verb in
		keep) kept="$kept $name" ;;
		tell) echo "$kept" ;;
		esac
	done
}

exec 6<>"$dir/caught"
(
	trap 'echo caught >&6' USR1
	echo set >&6
	while :; do sleep 100000 & wait $!; kill $! 2>/dev/null; done
) 2>/dev/null &
trapper=$!
read -r _ <&6

last=0
check() {
	local n want k
	for k in 1 2 3 4 5 6 7 8 9 10; do
		read -r n <&5
		want=$((last + 1))
		[ "$n" = "$want" ] || { echo "bad the pipe holds $n where $want was to come"; return; }
		last=$n
	done
	case $(jobs -l) in
	*"$stopped Stopped"*) ;;
	*) echo "bad no stopped job: $(jobs -l)"; return ;;
	esac
	kill -USR1 $trapper
	read -r n <&6
	[ "$n" = caught ] || { echo "bad the trap said $n"; return; }
	echo tell >&"${names[1]}"
	read -r n <&"${names[0]}"
	echo "ok $n"
}

echo "0 ready"
while read -r number verb name; do
	case $verb in
	mark) echo "keep $name" >&"${names[1]}"; echo "$number ok" ;;
	check) check >"$dir/said"; echo "$number $(cat "$dir/said")" ;;
	esac
done
