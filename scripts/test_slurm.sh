#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs jobs of a real Slurm with two nodes on this machine, as an ordinary user: the batch scripts of the guide, and
# packaging/slurm/esker-slurm as prolog, epilog and task prolog.
#
# usage: scripts/test_slurm.sh ESKER     the command
#
# Skips with a message where Slurm, Munge or FUSE are missing, or without root, whom slurmd needs.
set -euo pipefail
esker=$(realpath "$1")
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin

say() { echo "test_slurm: $*"; }
fail() { say "FAILED: $*"; return 1; }
skip() { say "skipped: $*"; exit 0; }
[ "$EUID" = 0 ] || skip "slurmd needs root"
for command in slurmctld slurmd srun sbatch munged fusermount3; do
    command -v $command >/dev/null || skip "there is no $command"
done
[ -w /dev/fuse ] || skip "there is no /dev/fuse"

readonly user=nobody
top=$(mktemp -d)
chmod 755 "$top"
mkdir "$top/bin" "$top/munge" "$top/state" "$top/work"
install -m 755 "$esker" "$top/bin/esker"
chown "$user" "$top/work"
export SLURM_CONF=$top/slurm.conf

stop() {
    local pid node
    for pid in "$top"/*.pid "$top"/munge/*.pid; do kill "$(cat "$pid")" 2>/dev/null || true; done
    for node in 0 1; do umount -l "$top/run-node$node"/*/files 2>/dev/null || true; done
    sleep 0.5
    rm -rf --one-file-system "$top"
}
trap stop EXIT

# What a site sets in the scripts that run esker-slurm. Both nodes are on one machine, so each has directories of its
# own.
for name in prolog task-prolog; do
    {
        echo '#!/bin/bash'
        echo "export ESKER_COMMAND=$top/bin/esker ESKER_SLURM_ROOT=$top/run-\$SLURMD_NODENAME"
        if [ $name = task-prolog ]; then
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
PrologFlags=Alloc
NodeName=node[0-1] NodeHostname=$host NodeAddr=127.0.0.1 Port=[27000-27001] CPUs=4 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=10
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

# job NAME [OPTION...] <SCRIPT: runs a batch script on both nodes and waits; prints how it ended.
job() {
    local name=$1 id
    shift
    cat >"$top/work/$name.sh"
    id=$(as_user sbatch --parsable --nodes=2 --ntasks-per-node=2 --output="$name.out" "$@" "$name.sh")
    echo "$id" >"$top/work/$name.id"
    for _ in $(seq 1200); do
        case $(scontrol show job -o "$id" | grep -o 'JobState=[A-Z_]*') in
        JobState=COMPLETED) echo succeeded && return ;;
        JobState=FAILED) echo failed && return ;;
        esac
        sleep 0.1
    done
    echo unfinished
}

# settled: waits until epilogs have ended.
settled() {
    for _ in $(seq 200); do
        [ -z "$(squeue -h)" ] && [ "$(sinfo -h -o %T)" = idle ] && return
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
    text=$(awk '/^```sh site/ { inside = 1; text = ""; next } /^```/ { if (inside && text ~ /srun/) { print text; exit } inside = 0 }
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

say "prolog and epilog"
comment="esker store=$top/work/store base=input write=by-epilog"
ended=$(job written --comment "$comment" <<<$'#!/bin/bash\nsrun ./simulate_in_files')
[ "$ended" = failed ] || fail "a program that is missing"
settled
as_user esker ls by-epilog:/ 2>/dev/null && fail "a job that failed was published"
grep -q 'the job failed' "$top/work/esker-$(cat "$top/work/written.id").out" || fail "nobody said that the job failed"
ended=$(job written --comment "$comment" <<<$'#!/bin/bash\nsrun sh -c \'exec ./simulate $ESKER_FILES\'')
[ "$ended" = succeeded ] || { cat "$top/work/written.out"; fail "a job with files"; }
settled
found=$(as_user esker find by-epilog:/ | sort | tr '\n' ' ')
[ "$found" = "/ /input /of-0-0 /of-0-1 /of-1-2 /of-1-3 " ] || fail "found $found"
grep -q by-epilog "$top/work/esker-$(cat "$top/work/written.id").out" || fail "nobody said what was published"
ended=$(job shown --comment "esker store=$top/work/store base=input" \
    <<<$'#!/bin/bash\nsrun sh -c \'cat $ESKER_FILES/input && ! touch $ESKER_FILES/new\'')
[ "$ended" = succeeded ] || { cat "$top/work/shown.out"; fail "a job that reads"; }
[ "$(grep -c common "$top/work/shown.out")" = 4 ] || fail "a job that reads: $(cat "$top/work/shown.out")"

say "comments that ask for what there is not, or for more than files"
for comment in "esker store=$top/work/store base=absent write=never" "esker store=/nowhere base=input" "esker base=input" \
    "esker store=\$(touch\$IFS$top/work/planted) base=input" \
    "esker store=$top/work/store base=input in-place=always" "esker store=$top/work/store;id>$top/work/planted base=* write=x"; do
    ended=$(job refused --comment "$comment" <<<$'#!/bin/bash\nsrun true')
    settled
    [ "$ended" = failed ] || fail "'$comment' was accepted: $(cat "$top/work/refused.out")"
    grep -q 'esker: ' "$top/work/refused.out" || fail "'$comment': $(cat "$top/work/refused.out")"
    [ ! -e "$top/work/planted" ] || fail "'$comment' ran a command"
done
# A name is never taken for an option.
ended=$(job dashes --comment "esker store=$top/work/store base=input write=--help" <<<$'#!/bin/bash\ntrue')
settled
grep -q '"--help" cannot be the name' "$top/work/esker-$(cat "$top/work/dashes.id").out" || fail "a name of dashes"
for comment in "" "other words" "eskers"; do
    ended=$(job other --comment "$comment" <<<$'#!/bin/bash\n[ -z "${ESKER_FILES:-}" ] && srun true')
    [ "$ended" = succeeded ] || fail "'$comment': $(cat "$top/work/other.out")"
done
settled
[ -z "$(ls -A "$top"/run-node0 "$top"/run-node1 | grep -v :)" ] || fail "directories are left: $(ls -A "$top"/run-node*)"
[ -z "$(as_user esker --json session list | grep '"state":"open"')" ] || fail "sessions are left open"
as_user esker verify >/dev/null || fail "the store"
say "passed"
