# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Part of test_slurm.sh: jobs that are requeued, lose a node or run out of time, mounts that fail, are in use
# or die, and arrays. Some of them wait for the clocks of Slurm.

# slurmctld looks at time limits every 30 s.
late=$(submit late --comment "$(wants late)" --time=1 <<<$'#!/bin/bash\ntrap "exit 0" TERM\nsleep 300 & wait')
scontrol update jobid="$late" EndTime="$(date -d '+2 seconds' +%FT%T)" 2>/dev/null \
    || { sleep 1; scontrol update jobid="$late" EndTime="$(date -d '+2 seconds' +%FT%T)"; }

say "a job that is requeued"
again=$(submit again --requeue --comment "$(wants again)" <<'JOB'
#!/bin/bash
touch again.begun
echo "run ${SLURM_RESTART_COUNT:-0}" >"$ESKER_FILES/run-${SLURM_RESTART_COUNT:-0}"
[ "${SLURM_RESTART_COUNT:-0}" != 0 ] || { trap "exit 0" TERM; sleep 300 & wait; }
JOB
)
running again
sleep 0.2
scontrol requeue "$again"
for _ in $(seq 100); do
    [ "$(state "$again")" = PENDING ] && break
    sleep 0.1
done
! published again || fail "a run that was requeued was published"
[ "$(report "$again" | grep -c 'requeued the job')" = 1 ] || fail "nobody said that the job was requeued"
[ "$(as_user esker session list | grep -c "/$again/files")" = 0 ] || fail "its parts were not dropped"
# A run without a prolog does not begin without files.
for node in 0 1; do
    found=$(SLURM_JOB_ID=$again SLURM_SCRIPT_CONTEXT=prolog_task ESKER_SLURM_ROOT=$top/run-node$node \
        "$top/bin/esker-slurm") && fail "a run without a prolog begins"
    [[ $found = *'ran no prolog'* ]] || fail "nobody said that there was no prolog: $found"
done
# Slurm runs one again only some seconds later.
sleep 3
scontrol update jobid="$again" StartTime=now
[ "$(ended "$again")" = COMPLETED ] || fail "the second run: $(cat "$top/work/again.out")"
[ "$(as_user esker find again:/ | grep run-)" = /run-1 ] || fail "the second run: $(as_user esker find again:/)"

say "mounts that fail, are in use, or die, and a slurmctld that does not answer"
touch "$top/work/broken"
id=$(submit half --comment "$(wants half)" <<<$'#!/bin/bash\ntrue')
[ "$(ended "$id")" = COMPLETED ] || fail "half: $(cat "$top/work/half.out")"
rm "$top/work/broken"
! published half || fail "half of the parts were published"
report "$id" | grep -A1 'node1: there were no files' | grep -qx 'broken for this test' \
    || fail "nobody said why node1 had no files: $(report "$id")"
report "$id" | grep -q '1 of 2 nodes completed' || fail "nobody said what was missing: $(report "$id")"
touch "$top/work/silent"
id=$(submit silent --comment "$(wants silent)" <<<$'#!/bin/bash\ntrue')
[ "$(ended "$id")" = COMPLETED ] || fail "silent: $(cat "$top/work/silent.out")"
rm "$top/work/silent"
kept "$id" silent 'slurmctld does not say'
id=$(submit none --comment "$(wants none | sed s/input/absent/)" <<<$'#!/bin/bash\ntrue')
ended "$id" >/dev/null
[ "$(report "$id" | grep -c 'there were no files')" = 1 ] || fail "said twice: $(report "$id")"
used=$(submit used --comment "$(wants used)" <<'JOB'
#!/bin/bash
echo done >$ESKER_FILES/done
(setsid sh -c "echo \$\$ >used.stray; cd $ESKER_FILES; exec sleep 300" </dev/null >/dev/null 2>&1 &)
sleep 0.5
JOB
)
dead=$(submit dead --comment "$(wants dead)" <<'JOB'
#!/bin/bash
echo done >$ESKER_FILES/done
sync $ESKER_FILES/done
kill -9 $(esker --json mounts | grep "\"$ESKER_FILES\"" | grep -o '"pid":[0-9]*' | cut -d: -f2)
JOB
)
[ "$(ended "$used")" = COMPLETED ] || fail "used: $(cat "$top/work/used.out")"
kill -0 "$(cat "$top/work/used.stray")" || fail "no process was left"
report "$used" | grep -q 'node0: a process still used the files' || fail "nobody spoke of a process: $(report "$used")"
[ "$(as_user esker cat used:/done)" = "done" ] || fail "used: $(report "$used")"
[ "$(ended "$dead")" = COMPLETED ] || fail "dead: $(cat "$top/work/dead.out")"
! published dead || fail "a part that is open was published"
report "$dead" | grep -q 'node0: the mount died' || fail "nobody said that the mount died: $(report "$dead")"
paste "$dead" 'to complete the part'
paste "$dead" 'to publish the parts'
[ "$(as_user esker cat dead:/done)" = "done" ] || fail "dead: $(report "$dead")"

say "names in arrays, jobs of steps, and a working directory that is read-only"
array=$(submit array --array=3,5 --comment "$(wants 'array-%A-%a-%j')" <<<$'#!/bin/bash\ntrue')
mkdir "$top/readonly"
id=$(SLURM_STEP_ID=0 submit home --chdir="$top/readonly" --output=/dev/null --comment "$(wants 'home-%j')" \
    <<<$'#!/bin/bash\ntrue')
for task in $(squeue -h -r -j "$array" -o %A); do ended "$task" >/dev/null; done
ended "$id" >/dev/null
settled
grep -q "home-$id" "$top/home/esker-$id.out" || fail "no report in the home"
published "home-$id" || fail "a job that was submitted in a step: $(cat "$top/home/esker-$id.out")"
[ "$(as_user esker names | grep -o "array-$array-[0-9]-" | sort | tr '\n' ' ')" = "array-$array-3- array-$array-5- " ] \
    || fail "an array: $(as_user esker names)"

say "jobs that lose a node"
for name in lost lost-again; do
    option=--no-requeue
    [ $name = lost ] || option=--requeue
    id=$(submit $name $option --comment "$(wants $name)" \
        <<<$'#!/bin/bash\ntouch '$name$'.begun; trap "exit 0" TERM\nsleep 300 & wait')
    running $name
    kill -9 "$(cat "$top/slurmd-node1.pid")"
    scontrol update nodename=node1 state=down reason=test
    if [ $name = lost ]; then
        [ "$(ended "$id")" = NODE_FAIL ] || fail "$name is $(state "$id")"
        report "$id" | grep -q 'nothing was published: .*NodeDown' || fail "nobody said why: $(report "$id")"
    else
        for _ in $(seq 100); do
            [ "$(state "$id")" != PENDING ] || break
            sleep 0.1
        done
        report "$id" | grep -q 'requeued the job' || fail "nobody said why: $(report "$id")"
    fi
    ! published $name || fail "$name was published"
    # The node comes back, and ends the job. Slurm does not wait for that epilog.
    slurmd -N node1
    for _ in $(seq 200); do
        [ -e "$top/run-node1/$id.job" ] || break
        sleep 0.1
    done
    scontrol update nodename=node1 state=resume
    if [ $name = lost ]; then kept "$id" $name NodeDown; else scancel "$id"; fi
    settled
    ! published $name || fail "$name was published"
    [ $name = lost ] || [ "$(as_user esker session list | grep -c "/$id/files")" = 0 ] \
        || fail "$name left parts: $(as_user esker session list)"
done

say "a job that runs out of time"
[ "$(ended "$late")" = TIMEOUT ] || fail "late is $(state "$late")"
kept "$late" late TimeLimit
