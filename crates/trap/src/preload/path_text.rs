// SPDX-License-Identifier: Apache-2.0
//! Path text: decides from its text whether a path without symbolic links stays away from a
//! directory.

/// Maximum length of a way: longer ones are left to the supervisor, since the stack of a signal
/// handler may be small.
pub const WAY_BYTES_MAX: usize = 512;

/// A path without `.`, `..` and repeated slashes; empty for the root directory.
struct NormalPath {
    bytes: [u8; WAY_BYTES_MAX],
    length: usize,
}

impl NormalPath {
    /// Goes from here to the entry `name` of the directory; false if the path gets too long.
    fn enter(&mut self, name: &[u8]) -> bool {
        if name.is_empty() || name == b"." {
            return true;
        }
        if name == b".." {
            let parent = self.as_bytes().iter().rposition(|&byte| byte == b'/');
            self.length = parent.unwrap_or(0);
            return true;
        }
        let end = self.length + 1 + name.len();
        let Some(added) = self.bytes.get_mut(self.length..end) else { return false };
        let Some((slash, rest)) = added.split_first_mut() else { return false };
        *slash = b'/';
        rest.copy_from_slice(name);
        self.length = end;
        true
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// True if `path`, which is absolute, is `directory` or below it.
fn is_within(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// True if the way along `path`, from the directory `start`, does not lead to `avoided`, also not on
/// to somewhere else. Says so only of paths without symbolic links; all but `path` are absolute and
/// normal. An absolute `path` needs no `start`.
pub fn stays_outside(start: &[u8], path: &[u8], avoided: &[u8]) -> bool {
    let mut way = NormalPath { bytes: [0; WAY_BYTES_MAX], length: 0 };
    let start = if path.starts_with(b"/") { b"" } else { start };
    let steps = start.split(|&byte| byte == b'/').chain(path.split(|&byte| byte == b'/'));
    for name in steps {
        if !way.enter(name) {
            return false;
        }
        if is_within(way.as_bytes(), avoided) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_followed_step_by_step() {
        let is_outside =
            |start: &str, path: &str| stays_outside(start.as_bytes(), path.as_bytes(), b"/a/place");
        for (start, path) in [
            ("/", "/"),
            ("/a", "x"),
            ("/a", "/usr/../usr/./include//x"),
            ("/a/place2", "x/../../b"),
            ("/", "a/../../../place"),
            ("/a/place", "/usr/x"),
        ] {
            assert!(is_outside(start, path), "{start} {path}");
        }
        for (start, path) in [
            ("/", "/a/place"),
            ("/", "//a/./place/x"),
            ("/", "/a/b/../place"),
            ("/a", "place"),
            ("/a", "place/../x"),
            ("/", "/a/place/../../usr"),
            ("/a/place", "../x"),
            ("/a/place/deep", ""),
            ("/usr", "../a/place/3"),
        ] {
            assert!(!is_outside(start, path), "{start} {path}");
        }
        let long = "x/".repeat(WAY_BYTES_MAX);
        assert!(!is_outside("/", &long));
    }
}
