//! The shell and the tools that scripts call.

use belljar_tests::{Level, Sandbox, each_level};

fn bash(level: Level, code: &str, output: &str) {
    super::expect(level, "bash", code, output);
}

each_level!(pipelines_and_here_documents, [standard, strict], |level| {
    bash(
        level,
        "set -euo pipefail
printf 'c\\nb\\na\\nb\\n' | sort | uniq -c | awk '{print $2 $1}' | paste -sd,
cat <<END | sed 's/name/world/'
hello name
END
tr a-z A-Z <<< 'here string'
seq 1 100000 | head -n 3 | tail -n 1 || true",
        "a1,b2,c1\nhello world\nHERE STRING\n3\n",
    );
});

each_level!(process_substitution_and_coprocess, [standard, strict], |level| {
    bash(
        level,
        "diff <(echo a; echo b) <(echo a; echo c) | head -1
while read -r line; do echo \"got $line\"; done < <(printf '1\\n2\\n')
coproc bc_like { while read -r x; do echo $((x)); done; }
echo '6 * 7' >&${bc_like[1]}; read -r answer <&${bc_like[0]}; echo $answer",
        "2c2\ngot 1\ngot 2\n42\n",
    );
});

each_level!(background_jobs_and_traps, [standard, strict], |level| {
    bash(
        level,
        "trap 'echo bye' EXIT
trap 'echo caught' USR1
for i in 1 2 3; do (exit $i) & pids+=($!); done
for pid in ${pids[@]}; do wait $pid; echo -n \"$? \"; done; echo
kill -USR1 $$
mkfifo /tmp/f; echo through > /tmp/f & cat /tmp/f; wait
timeout 0.1 sleep 10; echo $?
(ulimit -n 64; ulimit -n)",
        "1 2 3 \ncaught\nthrough\n124\n64\nbye\n",
    );
});

each_level!(tools, [standard, strict], |level| {
    bash(
        level,
        "set -e
mkdir -p d/e; echo content > d/e/f; chmod 750 d; ln -s e/f d/link; touch -d @1000000000 d/e/f d
tar czf d.tgz d; rm -r d; tar xzf d.tgz; cat d/link; stat -c '%a %Y' d d/e/f | tr '\\n' ' '; echo
gzip -c d/e/f | gunzip | md5sum | cut -c1-8
find d -type f -name 'f' -exec basename {} \\;
echo 'x=1;y=2' | grep -o 'y=[0-9]' ; expr 6 \\* 7; date -u -d @0 +%F
dd if=/dev/zero of=z bs=1024 count=8 status=none; wc -c < z; cmp z <(head -c 8192 /dev/zero) && echo same
echo a b c | xargs -n1 -P2 echo | sort | tr -d '\\n'; echo; env -i sh -c 'echo ${HOME:-none}'
mktemp -d | cut -c1-9; nproc > /dev/null; hostname; whoami",
        "content\n750 1000000000 644 1000000000 \nf75b8179\nf\ny=2\n42\n1970-01-01\n8192\nsame\nabc\nnone\n/tmp/tmp.\nbelljar\nsandbox\n",
    );
});

each_level!(listing_the_whole_tree, [standard, strict], |level| {
    let code = "find / -xdev -maxdepth 2 2>/dev/null | wc -l; find / -path /usr/bin/python3 2>/dev/null; du -s /usr/bin >/dev/null && echo du; df -k /workspace | tail -1 | awk '{print $2}'";
    let outcome = Sandbox::at(level).run_bash(code);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert!(lines[0].parse::<u32>().expect("a count") > 10, "{outcome:?}");
    assert_eq!(lines[1..], ["/usr/bin/python3", "du", "102400"], "{outcome:?}");
});

each_level!(perl, [standard, strict], |level| {
    bash(
        level,
        "perl -MPOSIX -MData::Dumper -e 'my $pid = fork // die; exit 3 unless $pid; wait; print $? >> 8, \" \", join(\",\", sort { $b <=> $a } 1..5), \"\\n\"; open my $f, \"-|\", \"echo piped\"; print <$f>;'",
        "3 5,4,3,2,1\npiped\n",
    );
});
