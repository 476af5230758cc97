// SPDX-License-Identifier: Apache-2.0
//! Refused calls: those that panic without a reason, and those that a simulation cannot intercept.

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
    fn the_clock_has_one_home() {
        let rule = ambient_time_and_randomness;
        let text = "fn f() {\n  std::time::Instant::now();\n  SystemTime :: now();\n}\n";
        assert_eq!(lines(rule, "crates/a/tests/b.rs", text), [2, 3]);
        assert!(lines(rule, "crates/base/src/clock.rs", text).is_empty());
        assert!(lines(rule, "peers/src/main.rs", text).is_empty());
        assert_eq!(lines(rule, "crates/a/src/b.rs", "fn f() { rand::random::<u8>(); }"), [1]);
    }
}
