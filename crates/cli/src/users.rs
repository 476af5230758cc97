// SPDX-License-Identifier: Apache-2.0
//! Users: names of users and groups, from /etc/passwd and /etc/group.
//!
//! Users that only a directory service knows are shown by number.

use std::collections::HashMap;
use std::fs;

/// Names by number.
pub struct UserNames {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl UserNames {
    /// The users of this machine.
    pub fn of_machine() -> Self {
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    /// Knows no names: all users are shown by number.
    pub fn none() -> Self {
        Self { users: HashMap::new(), groups: HashMap::new() }
    }

    /// The name of a user, or the number.
    pub fn user(&self, uid: u32) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    /// The name of a group, or the number.
    pub fn group(&self, gid: u32) -> String {
        self.groups.get(&gid).cloned().unwrap_or_else(|| gid.to_string())
    }

    /// The number of the user `name`.
    pub fn uid(&self, name: &str) -> Option<u32> {
        number_of(&self.users, name)
    }

    /// The number of the group `name`.
    pub fn gid(&self, name: &str) -> Option<u32> {
        number_of(&self.groups, name)
    }
}

fn number_of(names: &HashMap<u32, String>, name: &str) -> Option<u32> {
    names.iter().find(|(_, of)| *of == name).map(|(number, _)| *number)
}

fn read(path: &str) -> HashMap<u32, String> {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    // name:password:number:…; the first name of a number counts.
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let name = fields.next();
        let number = fields.nth(1).and_then(|number| number.parse().ok());
        if let (Some(name), Some(number)) = (name, number) {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}
