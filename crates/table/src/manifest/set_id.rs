// SPDX-License-Identifier: Apache-2.0
//! Set id: the identity of a change set. As text, 32 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind, Result};

/// Identity of a change set, unique without coordination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetId(pub u128);

impl fmt::Display for SetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for SetId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        id.map(Self).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("{text:?} is not a change set id (32 hex digits)"))
        })
    }
}
