# find, du, tar and rm -r in the middle of a walk, over and over: the copy of a
# tree has the sum of the tree, and nothing is left of it when it is removed.
dir=$(mktemp -d)
tree=/usr/share/perl5
[ -d "$tree" ] || tree=/usr/lib/python3*/json
sum() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 cksum | cksum) }
want=$(sum $tree)
mkfifo "$dir/passes"
exec 5<>"$dir/passes"

(
	while :; do
		cp -r $tree "$dir/copy" || exit
		got=$(sum "$dir/copy")
		[ "$got" = "$want" ] || { echo "bad the copy has the sum $got, not $want" >&5; exit; }
		rm -r "$dir/copy" || { echo "bad rm ended with $?" >&5; exit; }
		[ ! -e "$dir/copy" ] || { echo "bad it is still there" >&5; exit; }
		echo pass >&5
	done
) 2>"$dir/errors" &
walker=$!
(while :; do find / -xdev -size +100000k; du -s /usr; done) >/dev/null 2>&1 &

echo "0 ready"
while read -r number verb name; do
	case $verb in
	mark) touch "/root/kept-$name"; echo "$number ok" ;;
	check)
		said=pass
		# What was written before the request is not its answer.
		while [ "$said" = pass ] && read -r -t 0 <&5; do read -r said <&5; done
		for _ in 1 2; do [ "$said" != pass ] || read -r said <&5; done
		if [ -s "$dir/errors" ]; then said="bad $(tr '\n' ' ' <"$dir/errors")"; fi
		kill -0 $walker 2>/dev/null || said="bad the walker has ended"
		[ "$said" != pass ] || said="ok $(cd /root && ls -tr | sed -n 's/^kept-//p' | tr '\n' ' ')"
		echo "$number $said"
		;;
	esac
done
