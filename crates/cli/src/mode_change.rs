// SPDX-License-Identifier: Apache-2.0
//! Mode change: permission bits as chmod(1) takes them, in octal or as symbolic changes.

use crate::quantity;

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// Replaces the bits.
    Octal(u32),
    /// Applies one clause after the other.
    Symbolic(Vec<ModeClause>),
}

/// One clause of a symbolic mode, such as `g-w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeClause {
    /// Bits of the classes concerned, set-id and sticky bits included; `None` for all classes, less
    /// the bits of the umask.
    who: Option<u32>,
    operator: char,
    /// Permission bits, for all classes.
    bits: u32,
    /// True if `X` was among the permissions.
    executes_if_any: bool,
    /// Class whose current permissions are copied, as the shift of its bits.
    copied: Option<u32>,
}

impl ModeChange {
    /// Parses a mode such as `644`, `u+x`, `go-w,a+X`, `g=rx` or `g=u`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|digit: char| digit.is_ascii_digit()) {
            return quantity::mode(text).map(Self::Octal);
        }
        let clauses: Option<Vec<_>> = text.split(',').map(ModeClause::parse).collect();
        clauses
            .map(Self::Symbolic)
            .ok_or_else(|| format!("{text:?} is not a mode; expected 644, u+x or go-w,a+X"))
    }

    /// Applies the change to `mode`.
    pub fn apply(&self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        match self {
            Self::Octal(mode) => *mode,
            Self::Symbolic(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.apply(mode, is_directory, umask))
            }
        }
    }
}

impl ModeClause {
    fn parse(text: &str) -> Option<Self> {
        let at = text.find(['+', '-', '='])?;
        let mut who = 0;
        for class in text[..at].chars() {
            who |= match class {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        let operator = text[at..].chars().next()?;
        let mut clause = Self {
            who: (at > 0).then_some(who),
            operator,
            bits: 0,
            executes_if_any: false,
            copied: None,
        };
        for permission in text[at + 1..].chars() {
            clause.bits |= match permission {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                's' => 0o6000,
                't' => 0o1000,
                'u' | 'g' | 'o' if text.len() == at + 2 => {
                    clause.copied = Some(match permission {
                        'u' => 6,
                        'g' => 3,
                        _ => 0,
                    });
                    0
                }
                'X' => {
                    clause.executes_if_any = true;
                    0
                }
                _ => return None,
            };
        }
        Some(clause)
    }

    fn apply(self, mode: u32, is_directory: bool, umask: u32) -> u32 {
        let executes = self.executes_if_any && (is_directory || mode & 0o111 != 0);
        // The same three bits for each class.
        let copied = self.copied.map_or(0, |shift| (mode >> shift & 7) * 0o111);
        let bits = self.bits | copied | if executes { 0o111 } else { 0 };
        // The sticky bit belongs to all classes.
        let who = self.who.unwrap_or(0o7777 & !umask) | 0o1000;
        match self.operator {
            '+' => mode | bits & who,
            '-' => mode & !(bits & who),
            _ => mode & !(self.who.unwrap_or(0o7777) & 0o777) | bits & who,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_chmod_does() {
        for (text, mode, changed) in [
            ("644", 0o777, 0o644),
            ("u+x", 0o644, 0o744),
            ("+x", 0o644, 0o755),
            ("+w", 0o444, 0o644),
            ("go-rwx", 0o755, 0o700),
            ("g=rx", 0o770, 0o750),
            ("a=r", 0o751, 0o444),
            ("u+s,g+s", 0o755, 0o6755),
            ("u-s", 0o6755, 0o2755),
            ("+t", 0o777, 0o1777),
            ("a+X", 0o644, 0o644),
            ("a+X", 0o744, 0o755),
            ("g=u", 0o640, 0o660),
            ("g=u,o=g", 0o700, 0o777),
            ("o-u", 0o467, 0o463),
            ("g+o", 0o604, 0o644),
        ] {
            let change = ModeChange::parse(text).expect(text);
            assert_eq!(change.apply(mode, false, 0o022), changed, "{text}");
        }
        assert_eq!(ModeChange::parse("a+X").expect("a mode").apply(0o600, true, 0), 0o711);
        for text in ["", "x", "888", "u+q", "u", "g=ur", "g=ru", "+x,", "17777"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}
