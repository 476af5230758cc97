#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs jobs of a real Slurm with two nodes on this machine, as an ordinary user: the batch scripts of the guide, and
# packaging/slurm/esker-slurm as prolog, epilog, task prolog and task epilog.
#
# usage: scripts/test_slurm.sh ESKER [--faults]      (the command; with --faults also what slurm_faults.sh has)
#
# Skips with a message where Slurm, Munge or FUSE are missing, or without root, whom slurmd needs.
set -euo pipefail
script=$(realpath "$0")
esker=$(realpath "$1")
cd "$(dirname "$0")/.."
. scripts/mount_namespace.sh
PATH=$PATH:/usr/sbin

say() { echo "test_slurm: $*"; }
fail() { say "FAILED: $*"; return 1; }
skip() { say "skipped: $*"; exit 0; }
[ "$EUID" = 0 ] || skip "slurmd needs root"
for command in slurmctld slurmd srun sbatch munged fusermount3; do
    command -v $command >/dev/null || skip "there is no $command"
done
[ -w /dev/fuse ] || skip "there is no /dev/fuse"
if [ -z "${IN_NAMESPACE+set}" ]; then
    in_namespace "$script" "$esker" "${@:2}"
    exit
fi
open_fuse

readonly user=nobody
top=$(mktemp -d)
chmod 755 "$top"
mkdir "$top/bin" "$top/home" "$top/munge" "$top/state" "$top/work"
install -m 755 "$esker" "$top/bin/esker"
chown "$user" "$top/home" "$top/work"
export SLURM_CONF=$top/slurm.conf

# Ends jobs, daemons, processes that jobs have left, and mounts.
stop() {
    local pid place
    timeout 5 scancel --user=$user 2>/dev/null || true
    for _ in $(seq 80); do
        [ -n "$(timeout 5 squeue -h 2>/dev/null)" ] || break
        sleep 0.1
    done
    for pid in "$top"/*.pid "$top"/munge/*.pid "$top/work/"*.stray; do
        kill "$(cat "$pid" 2>/dev/null)" 2>/dev/null || true
    done
    # The superuser cannot look into a user's mount, so no pattern finds it.
    grep -o " $top/run-[^ ]*" /proc/self/mountinfo | while read -r place; do umount -l "$place"; done || true
    sleep 0.5
    rm -rf --one-file-system "$top"
}
trap stop EXIT

# What a site sets in the scripts that run esker-slurm. Both nodes are on one machine, so each has directories of its
# own. The user has a home. While a file `broken` exists, node1 cannot mount; while `silent` exists, slurmctld does not
# answer epilogs.
cat >"$top/bin/broken" <<SITE
#!/bin/sh
[ "\$1" != mount ] || [ ! -e $top/work/broken ] || { echo "esker: broken for this test"; exit 1; }
exec $top/bin/esker "\$@"
SITE
chmod 755 "$top/bin/broken"
for name in prolog task-prolog; do
    {
        echo '#!/bin/bash'
        echo "export ESKER_COMMAND=$top/bin/esker ESKER_SLURM_ROOT=$top/run-\$SLURMD_NODENAME"
        if [ $name = prolog ]; then
            echo "getent() { echo user:x:0:0::$top/home:; }; export -f getent"
            echo "timeout() { [ \$2 != scontrol ] || [ ! -e $top/work/silent ] || return 1; command timeout \"\$@\"; }"
            echo "export -f timeout"
            echo "[ \$SLURMD_NODENAME = node0 ] || ESKER_COMMAND=$top/bin/broken"
        else
            echo "mkdir -p $top/work/tmp-\$SLURMD_NODENAME"
            echo "echo export TMPDIR=$top/work/tmp-\$SLURMD_NODENAME"
        fi
        echo "exec $PWD/packaging/slurm/esker-slurm"
    } >"$top/$name"
done
install -m 755 packaging/slurm/esker-slurm "$top/bin/esker-slurm"
sed -i "s|^exec .*|exec $top/bin/esker-slurm|" "$top/prolog" "$top/task-prolog"
chmod 755 "$top/prolog" "$top/task-prolog"

host=$(hostname -s)
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$top/munge/socket
StateSaveLocation=$top/state
SlurmdSpoolDir=$top/spool-%n
SlurmctldPidFile=$top/slurmctld.pid
SlurmdPidFile=$top/slurmd-%n.pid
SlurmctldLogFile=$top/slurmctld.log
SlurmdLogFile=$top/slurmd-%n.log
SlurmctldPort=26817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
KillWait=5
Prolog=$top/prolog
Epilog=$top/prolog
TaskProlog=$top/task-prolog
TaskEpilog=$top/task-prolog
PrologFlags=Alloc
NodeName=node[0-1] NodeHostname=$host NodeAddr=127.0.0.1 Port=[27000-27001] CPUs=4 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=10 PriorityTier=1 GraceTime=10 PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL State=UP MaxTime=10 PriorityTier=2 PreemptMode=OFF
CONF
dd if=/dev/urandom of="$top/munge/key" bs=128 count=1 status=none
chmod 600 "$top/munge/key"
munged --key-file="$top/munge/key" --socket="$top/munge/socket" --pid-file="$top/munge/munged.pid" \
    --log-file="$top/munge/log" --seed-file="$top/munge/seed" --force
slurmctld -c
for node in 0 1; do
    mkdir "$top/spool-node$node"
    slurmd -c -N node$node
done
for _ in $(seq 100); do
    [ "$(sinfo -h -o %T)" = idle ] && break
    sleep 0.1
done
[ "$(sinfo -h -o %T)" = idle ] || { tail -n 20 "$top"/slurm*.log; skip "Slurm does not start here"; }

as_user() { setpriv --reuid=$user --regid=$(id -g $user) --clear-groups -- env -C "$top/work" \
    HOME="$top/work" PATH="$top/bin:$PATH" ESKER_STORE="$top/work/store" "$@"; }

# submit NAME [OPTION...] <SCRIPT: submits a batch script for both nodes; prints the job id.
submit() {
    local name=$1
    shift
    cat >"$top/work/$name.sh"
    as_user sbatch --parsable --nodes=2 --ntasks-per-node=1 --output="$name.out" "$@" "$name.sh" \
        | tee "$top/work/$name.id"
}

# state ID: prints the state of a job.
state() {
    scontrol show job -o "$1" | awk -v id="JobId=$1 " '/^JobId=/ { mine = index($0, id) == 1 } mine' \
        | grep -o 'JobState=[A-Z_]*' | tail -n 1 | cut -d= -f2
}

# ended ID: waits for the end of a job and of its epilogs; prints the state.
ended() {
    for _ in $(seq 900); do
        case $(state "$1") in
        PENDING | CONFIGURING | RUNNING | COMPLETING) sleep 0.1 ;;
        *) state "$1" && return ;;
        esac
    done
    echo unfinished
}

# running NAME: waits until the batch script has made the file NAME.begun.
running() {
    for _ in $(seq 200); do
        [ ! -e "$top/work/$1.begun" ] || return 0
        sleep 0.1
    done
    fail "the job $1 does not begin"
}

# job NAME [OPTION...] <SCRIPT: runs a batch script on both nodes and waits; prints how it ended.
job() {
    case $(ended "$(submit "$@" --ntasks-per-node=2)") in
    COMPLETED) echo succeeded ;;
    FAILED) echo failed ;;
    *) echo unfinished ;;
    esac
}

# report ID: prints what the epilogs of a job said.
report() { cat "$top/work/esker-$1.out"; }

# published NAME: true if there is such a snapshot.
published() { as_user esker names --json 2>/dev/null | grep -qF "\"$1\""; }

# parts ID STATE: counts the sessions with parts that the report of a job names.
parts() {
    local run
    run=$(report "$1" | grep -om1 -- '--job [0-9a-f]*' | cut -d' ' -f2)
    as_user esker --json session list | grep -F "\"job\":\"$run\"" | grep -cF "\"state\":\"$2\"" || true
}

# paste ID LINES: runs the commands of a report that follow a line with these words, as they are.
paste() {
    report "$1" | sed -n "/$2/,/:\$/{/^  /p}" >"$top/work/pasted"
    [ -s "$top/work/pasted" ] || fail "no command for '$2': $(report "$1")"
    as_user env -u ESKER_STORE bash -e ./pasted >"$top/work/pasted.out" 2>&1 \
        || fail "$(cat "$top/work/pasted" "$top/work/pasted.out")"
}

# kept ID NAME WORDS: fails unless a job published nothing under a name, said so once and why, and kept its parts.
kept() {
    ! published "$2" || fail "$2 was published"
    report "$1" | grep -q "nothing was published: .*$3" || fail "$2: nobody said $3: $(report "$1")"
    [ "$(report "$1" | grep -c 'nothing was published')" = 1 ] || fail "$2: said twice: $(report "$1")"
    [ "$(parts "$1" complete)" = 2 ] || fail "$2: its parts: $(as_user esker session list)"
}

# settled: waits until epilogs have ended. Slurm does not take back at once that it had planned jobs for a node.
settled() {
    for _ in $(seq 200); do
        [ -z "$(squeue -h)" ] && ! sinfo -h -o %T | grep -qvx 'idle\|planned' && return
        sleep 0.1
    done
    sinfo
    fail "nodes do not become idle again"
}

as_user esker init >/dev/null
echo common >"$top/work/input-file"
as_user esker put input-file new:/input --as input >/dev/null 2>&1 \
    || { as_user mkdir -p tree && as_user cp input-file tree/input && as_user esker import tree input >/dev/null; }
printf '#!/bin/sh\ncat "$1/input" >"$1/of-$SLURM_NODEID-${ESKER_RANK:-$SLURM_PROCID}"\n' >"$top/work/simulate"
chmod 755 "$top/work/simulate"

say "the batch scripts of the guide"
for page in unmodified-programs mount; do
    text=$(awk '/^```sh site/ { inside = 1; text = ""; next }
        /^```/ { if (inside && text ~ /srun/) { print text; exit } inside = 0 }
        inside { text = text $0 "\n" }' docs/guide/$page.md)
    text=${text//\/scratch\/store/$top/work/store}
    text=${text//esker run -n 32/esker run -n 2}
    text=${text//--nodes=8/--nodes=2}
    text=${text//--ntasks-per-node=32/--ntasks-per-node=2}
    ended=$(job $page <<<"$text")
    [ "$ended" = succeeded ] || { cat "$top/work/$page.out"; fail "the script of $page.md"; }
    settled
    [ "$(as_user esker find result:/ | grep -c /of-)" = 4 ] || fail "$page.md: $(as_user esker find result:/)"
    as_user esker delete result >/dev/null
done

say "jobs that do not succeed leave no name"
# wants NAME: the comment of a job that writes.
wants() { echo "esker store=$top/work/store base=input write=$1"; }
declare -A why=([alone]='cancelled: ExitCode' [steps]='cancelled: ExitCode' [polite]='was cancelled' [last]='was cancelled'
    [three]='the job failed' [killed]='the job failed')
declare -A script=(
    [alone]='sleep 300'
    [steps]='srun sleep 300'
    # Cancelled, and ends with 0.
    [polite]='trap "exit 0" TERM; sleep 300 & wait'
    # Cancelled while it does its last work, which succeeds.
    [last]='trap "" TERM; until [ -e last.cancelled ]; do sleep 0.05; done; exit 0'
    [three]='exit 3'
    [killed]='kill -9 $$'
)
for name in "${!why[@]}"; do
    submit "$name" --comment "$(wants "$name")" <<<$'#!/bin/bash\ntouch '"$name"$'.begun\n'"${script[$name]}" >/dev/null
done
for name in alone steps polite last; do
    running $name
    [ $name != steps ] || sleep 0.5
    scancel "$(cat "$top/work/$name.id")"
    touch "$top/work/$name.cancelled"
done
for name in "${!why[@]}"; do
    id=$(cat "$top/work/$name.id")
    found=$(ended "$id")
    [[ $name = [tk]* && $found = FAILED || $found = CANCELLED ]] || fail "$name is $found"
    kept "$id" "$name" "${why[$name]}"
    [ "$(state "$id")" = "$found" ]
done
# The commands that it prints.
id=$(cat "$top/work/polite.id")
paste "$id" 'to publish the parts'
published polite || fail "the command of the report did not publish"
id=$(cat "$top/work/three.id")
paste "$id" 'to drop them'
[ "$(parts "$id" complete)" = 0 ] || fail "the command of the report did not drop"

say "prolog and epilog"
comment="esker store=$top/work/store base=input write=by-epilog"
ended=$(job written --comment "$comment" <<<$'#!/bin/bash\nsrun ./simulate_in_files')
[ "$ended" = failed ] || fail "a program that is missing"
settled
as_user esker ls by-epilog:/ 2>/dev/null && fail "a job that failed was published"
grep -q 'the job failed' "$top/work/esker-$(cat "$top/work/written.id").out" || fail "nobody said that the job failed"
# Its name looks like fields of a job that failed.
ended=$(job written --comment "$comment" --job-name=$'run Reason=NodeDown UserId=0(root)\nJobState=FAILED' \
    <<<$'#!/bin/bash\nsrun sh -c \'exec ./simulate $ESKER_FILES\'')
[ "$ended" = succeeded ] || { cat "$top/work/written.out"; fail "a job with files"; }
settled
found=$(as_user esker find by-epilog:/ | sort | tr '\n' ' ')
[ "$found" = "/ /input /of-0-0 /of-0-1 /of-1-2 /of-1-3 " ] || fail "found $found"
grep -q by-epilog "$top/work/esker-$(cat "$top/work/written.id").out" || fail "nobody said what was published"
ended=$(job shown --comment "esker store=$top/work/store base=input" \
    <<<$'#!/bin/bash\nsrun sh -c \'cat $ESKER_FILES/input && ! touch $ESKER_FILES/new\'')
[ "$ended" = succeeded ] || { cat "$top/work/shown.out"; fail "a job that reads"; }
[ "$(grep -c common "$top/work/shown.out")" = 4 ] || fail "a job that reads: $(cat "$top/work/shown.out")"

say "a job that is preempted, and one that was submitted within another"
submit preempted --exclusive --comment "$(wants preempted)" <<<'#!/bin/bash
trap "touch preempted.told; exit 0" TERM
echo partial >$ESKER_FILES/partial
touch preempted.begun
sleep 300 & wait' >/dev/null
running preempted
# A job within one that has files, on the same node.
ESKER_FILES=$top/run-node0/1/files submit child --partition=urgent --exclusive --nodes=1 --nodelist=node0 \
    <<<$'#!/bin/bash\n[ -z "${ESKER_FILES:-}" ] && srun sh -c \'[ -z "${ESKER_FILES:-}" ]\'' >/dev/null
[ "$(ended "$(cat "$top/work/child.id")")" = COMPLETED ] || fail "a child has files: $(cat "$top/work/child.out")"
[ -e "$top/work/preempted.told" ] || fail "no job was preempted"
id=$(cat "$top/work/preempted.id")
ended "$id" >/dev/null
kept "$id" preempted 'was preempted'

say "comments that ask for what there is not, or for more than files"
refused=()
for comment in "esker store=$top/work/store base=absent write=never" "esker store=/nowhere base=input" \
    "esker base=input" "esker store=$top/work/store;id>$top/work/planted base=* write=x" \
    "esker store=relative base=input" "esker store=$top/work/store base=input write=of-%a" \
    "esker store=\$(touch\$IFS$top/work/planted) base=input" \
    "esker store=$top/work/store base=input in-place=always"; do
    name=refused-${#refused[@]}
    refused+=("$comment")
    submit "$name" --comment "$comment" <<<$'#!/bin/bash\nsrun true' >/dev/null
done
# A name is never taken for an option.
dashes=$(submit dashes --comment "esker store=$top/work/store base=input write=--help" <<<$'#!/bin/bash\ntrue')
others=()
for comment in "" "other words" "eskers"; do
    name=other-${#others[@]}
    others+=("$comment")
    submit "$name" --comment "$comment" <<<$'#!/bin/bash\n[ -z "${ESKER_FILES:-}" ] && srun true' >/dev/null
done
for name in "${!refused[@]}"; do
    comment=${refused[$name]}
    id=$(cat "$top/work/refused-$name.id")
    said=$top/work/refused-$name.out
    [ "$(ended "$id")" = FAILED ] || fail "'$comment' was accepted: $(cat "$said")"
    grep -q 'esker: ' "$said" || fail "'$comment': $(cat "$said")"
    ! grep -q 'esker: *esker:\|esker: *$' "$said" || fail "prefixes: $(cat "$said")"
    [ ! -e "$top/work/planted" ] || fail "'$comment' ran a command"
    case $comment in
    *relative*) grep -q 'must be an absolute path' "$said" || fail "'$comment': $(cat "$said")" ;;
    *%a) grep -q 'in no array' "$said" || fail "'$comment': $(cat "$said")" ;;
    esac
done
ended "$dashes" >/dev/null
report "$dashes" | grep -q '"--help" cannot be a name' || fail "a name of dashes: $(report "$dashes")"
for name in "${!others[@]}"; do
    id=$(cat "$top/work/other-$name.id")
    [ "$(ended "$id")" = COMPLETED ] || fail "'${others[$name]}': $(cat "$top/work/other-$name.out")"
done
settled

if [ "${2:-}" = --faults ]; then
    # shellcheck source=scripts/slurm_faults.sh
    . scripts/slurm_faults.sh
fi
settled
rm -f "$top"/run-node*/*.requeued
[ -z "$(ls -A "$top"/run-node0 "$top"/run-node1 | grep -v :)" ] \
    || fail "directories are left: $(ls -A "$top"/run-node*)"
[ -z "$(as_user esker --json session list | grep '"state":"open"')" ] || fail "sessions are left open"
as_user esker verify >/dev/null || fail "the store"
say "passed"
