// SPDX-License-Identifier: Apache-2.0
//! Cost of a recording: at most a microsecond more for a call.
//!
//! ```text
//! cargo test -p esker-advisor --test main -- --ignored --nocapture recording_cost
//! ```
//! The library that programs load is optimized in all builds. Calls are those of a C program on a file in
//! `TMPDIR` that is in the page cache; it runs with and without a recording in turn.

use std::fs;
use std::path::Path;
use std::process::Command;

use esker_base::clock::SystemClock;
use esker_capture::CallRecorder;

const PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

#define MEASURE(COUNT, CALL) do { \
        double begin = now(); \
        for (int index = 0; index < (COUNT); index++) if ((CALL) < 0) return 1; \
        printf("%.0f ", (now() - begin) / (COUNT)); \
    } while (0)

int main(void) {
    static char bytes[4096];
    struct stat attributes;
    int file = open("data", O_RDWR | O_CREAT, 0600);
    if (write(file, bytes, sizeof bytes) < 0) return 1;
    MEASURE(1000000, pread(file, bytes, 64, index % 4000));
    lseek(file, 0, SEEK_SET);
    MEASURE(1000000, read(file, bytes, index % 2));
    MEASURE(300000, stat("data", &attributes));
    MEASURE(300000, close(open("data", O_RDONLY)));
    return 0;
}
"#;

/// Calls, and how many of them each measurement has.
const CALLS: [(&str, f64); 4] =
    [("pread", 1.0), ("read", 1.0), ("stat", 1.0), ("open, close", 2.0)];
const ROUNDS: usize = 5;
const MORE_NS_MAX: f64 = 1_000.0;

/// Nanoseconds of each measurement.
fn run(dir: &Path, recorder: Option<&CallRecorder>) -> Vec<f64> {
    let mut command = Command::new("./calls");
    command.current_dir(dir).envs(recorder.map(CallRecorder::variable));
    let output = command.output().expect("run");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[test]
#[ignore = "a measurement: needs a quiet machine"]
fn a_call_takes_at_most_a_microsecond_more() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("calls.c"), PROGRAM).expect("written");
    let mut compile = Command::new("cc");
    compile.args(["-O2", "-o", "calls", "calls.c"]).current_dir(dir.path());
    assert!(compile.status().expect("a compiler").success());
    let (mut alone, mut recorded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(run(dir.path(), None));
        let recorder = CallRecorder::begin(dir.path(), &SystemClock).expect("a recorder");
        recorded.push(run(dir.path(), Some(&recorder)));
        let log = recorder.end().expect("a log");
        assert_eq!(log.unrecorded(), 0);
    }
    for (at, (calls, count)) in CALLS.into_iter().enumerate() {
        let of =
            |rounds: &[Vec<f64>]| median(rounds.iter().map(|round| round[at] / count).collect());
        let (alone, recorded) = (of(&alone), of(&recorded));
        println!(
            "{calls}: {alone:.0} ns, recorded {recorded:.0} ns, {:.0} ns more",
            recorded - alone
        );
        assert!(recorded - alone <= MORE_NS_MAX, "{calls}: {:.0} ns more", recorded - alone);
    }
}
