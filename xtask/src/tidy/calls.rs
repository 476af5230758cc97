// SPDX-License-Identifier: Apache-2.0
//! Calls: refuses those that panic without a reason, and those that a simulation cannot intercept.

use super::StyleProblem;
use super::rust_source::RustSource;

/// A call that reads ambient time or randomness, and the only file that may contain it.
struct AmbientCall {
    call: &'static [&'static str],
    name: &'static str,
    home: &'static str,
}

const AMBIENT: &[AmbientCall] = &[
    AmbientCall {
        call: &["Instant", ":", ":", "now"],
        name: "Instant::now",
        home: "crates/base/src/clock.rs",
    },
    AmbientCall {
        call: &["SystemTime", ":", ":", "now"],
        name: "SystemTime::now",
        home: "crates/base/src/clock.rs",
    },
    AmbientCall {
        call: &["rand", ":", ":", "random"],
        name: "rand::random",
        home: "crates/base/src/random.rs",
    },
];

/// A name that stands for ambient time, randomness or scheduling. Programs and tests begin with it;
/// libraries get a clock, a source of randomness or threads from them, except in the listed files.
struct AmbientSource {
    name: &'static [&'static str],
    /// Beginnings of the paths that may use it, each with the reason.
    homes: &'static [(&'static str, &'static str)],
}

const AMBIENT_SOURCES: &[AmbientSource] = &[
    AmbientSource {
        name: &["SystemClock"],
        homes: &[
            ("crates/base/src/clock.rs", "defines it"),
            ("crates/base/src/store/memory.rs", "the default of a constructor that has a variant"),
            ("crates/base/src/store/s3/credential_process.rs", "times another process"),
            ("crates/comm/src/tcp/", "times sockets"),
            ("crates/comm/src/polled.rs", "times another library"),
            ("crates/comm/src/threads/", "times threads that the system schedules"),
            ("crates/esker/src/", "the default of options for programs; documentation"),
            ("crates/fs/src/repository.rs", "the default of a constructor that has a variant"),
            ("crates/live/src/client/connection.rs", "times sockets"),
            ("crates/live/src/client/connection/wait_notice.rs", "times sockets"),
            ("crates/live/src/client/connection/reconnect.rs", "times sockets"),
            ("crates/table/src/table/reader.rs", "times requests, to learn a store's pace"),
            ("crates/workbench/src/pace.rs", "paces real operations"),
        ],
    },
    AmbientSource {
        name: &["Random", ":", ":", "from_system"],
        homes: &[
            ("crates/base/src/store/conformance/", "a suite of tests"),
            ("crates/base/src/store/posix/", "names that no other process has"),
            ("crates/base/src/store/s3/", "names that no other process has; spread of retries"),
            ("crates/base/src/store/url.rs", "the identity of a new store"),
            ("crates/comm/src/launch.rs", "names a job that starts processes"),
            ("crates/comm/src/tcp/", "secrets"),
            ("crates/esker/src/session.rs", "names that no other process has"),
            ("crates/fs/src/job/mod.rs", "a random identity, for callers that ask for one"),
            ("crates/fs/src/session/set_ids.rs", "the default of a source of identities"),
            ("crates/fuse/src/control.rs", "names a socket"),
            ("crates/live/src/client/", "names that no other process has; nonces"),
            ("crates/live/src/proof.rs", "secrets"),
            ("crates/live/src/server/", "names that no other process has; nonces"),
        ],
    },
    AmbientSource {
        name: &["thread", ":", ":", "sleep"],
        homes: &[
            ("crates/base/src/store/fault/", "a store for tests that is slow"),
            ("crates/comm/src/conformance/", "a suite of tests"),
            ("crates/comm/src/launch.rs", "waits for other processes"),
            ("crates/comm/src/polled.rs", "waits for another library"),
            ("crates/comm/src/tcp/", "waits for other processes"),
            ("crates/fs/src/retention/condemn.rs", "waits for collectors that run elsewhere"),
            ("crates/fuse-ring/src/", "waits for the kernel"),
            ("crates/live/src/client/connection/reconnect.rs", "waits for other processes"),
            ("crates/live/src/server/mod.rs", "waits for other processes"),
            ("crates/workbench/src/pace.rs", "paces real operations"),
        ],
    },
    AmbientSource {
        name: &["thread", ":", ":", "spawn"],
        homes: &[
            ("crates/fuse/src/mount.rs", "notifies the kernel of names"),
            ("crates/fuse/src/mount_run.rs", "answers the kernel, signals and commands"),
        ],
    },
];

/// Programs, and code outside of the product: these choose clocks, randomness and threads.
const PROGRAMS: &[&str] = &[
    "crates/cli/",
    "crates/bench/",
    "crates/esker/examples/",
    "crates/imd/examples/",
    "examples/",
    "xtask/",
    "peers/",
    "fuzz/",
];

/// Outside the workspace: these take no clock, or drive engines that have their own.
const AMBIENT_EXEMPT: &[&str] = &["peers/", "fuzz/"];

/// `expect("…")` names the invariant; `unwrap` names nothing.
pub fn unwrap_outside_tests(source: &RustSource) -> Vec<StyleProblem> {
    source
        .find(&[".", "unwrap", "(", ")"])
        .map(|place| &source.tokens[place + 1])
        .filter(|token| !token.in_test)
        .map(|token| {
            StyleProblem::new(
                &source.path,
                token.line,
                "`unwrap`: return an error, or `expect(\"…\")`",
            )
        })
        .collect()
}

/// Time and randomness are passed in, so that a simulation can replace them; in tests, too.
pub fn ambient_time_and_randomness(source: &RustSource) -> Vec<StyleProblem> {
    if AMBIENT_EXEMPT.iter().any(|prefix| source.path.starts_with(prefix)) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for ambient in AMBIENT.iter().filter(|ambient| ambient.home != source.path) {
        for place in source.find(ambient.call) {
            let message = format!("`{}` outside {}", ambient.name, ambient.home);
            problems.push(StyleProblem::new(&source.path, source.tokens[place].line, message));
        }
    }
    problems
}

/// Libraries are given time, randomness and threads; tests and programs choose them.
pub fn ambient_sources(source: &RustSource) -> Vec<StyleProblem> {
    let mut problems = Vec::new();
    if PROGRAMS.iter().any(|prefix| source.path.starts_with(prefix)) {
        return problems;
    }
    for ambient in AMBIENT_SOURCES {
        if ambient.homes.iter().any(|(home, _)| source.path.starts_with(home)) {
            continue;
        }
        for place in source.find(ambient.name).filter(|place| !source.tokens[*place].in_test) {
            let name = ambient.name.concat();
            let message = format!("`{name}`: let the caller give it, or add a reason to calls.rs");
            problems.push(StyleProblem::new(&source.path, source.tokens[place].line, message));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rule: fn(&RustSource) -> Vec<StyleProblem>, path: &str, text: &str) -> Vec<usize> {
        let source = RustSource::parse(path, text).expect("Rust");
        rule(&source).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn unwrap_is_for_tests() {
        let text = "fn f() {\n  a.unwrap();\n  assert!(b\n    .unwrap());\n  c.unwrap_or(1);\n}\n\
                    // d.unwrap()\n#[cfg(test)]\nmod tests { fn g() { e.unwrap(); } }\n";
        assert_eq!(lines(unwrap_outside_tests, "crates/a/src/b.rs", text), [2, 4]);
        assert!(lines(unwrap_outside_tests, "crates/a/tests/b.rs", text).is_empty());
    }

    #[test]
    fn libraries_choose_no_clock_randomness_or_threads() {
        let text = "fn f() {\n  SystemClock.now_ns();\n  Random::from_system();\n\
                    thread::sleep(t);\n  std::thread::spawn(g);\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { std::thread::spawn(f); } }";
        assert_eq!(lines(ambient_sources, "crates/a/src/b.rs", text), [2, 3, 4, 5]);
        assert_eq!(lines(ambient_sources, "crates/comm/src/tcp/a.rs", text), [5]);
        assert!(lines(ambient_sources, "crates/cli/src/b.rs", text).is_empty());
        assert!(lines(ambient_sources, "crates/a/tests/b.rs", text).is_empty());
    }

    #[test]
    fn the_clock_has_one_home() {
        let rule = ambient_time_and_randomness;
        let text = "fn f() {\n  std::time::Instant::now();\n  SystemTime :: now();\n}\n";
        assert_eq!(lines(rule, "crates/a/tests/b.rs", text), [2, 3]);
        assert!(lines(rule, "crates/base/src/clock.rs", text).is_empty());
        assert!(lines(rule, "peers/src/main.rs", text).is_empty());
        assert_eq!(lines(rule, "crates/a/src/b.rs", "fn f() { rand::random::<u8>(); }"), [1]);
    }
}
