// SPDX-License-Identifier: Apache-2.0
//! Crowds: more clients wait for another seat than a server lets wait at once.

use std::sync::Barrier;

use esker_base::Result;
use esker_live::client::{LiveDir, Request};
use esker_live::{LiveServer, LiveServerOptions};

use crate::seated_store::SeatedStore;
use crate::served::{NAME, server_options};

/// Symptom: removals failed with `Unavailable` although all servers answered, and directories that were
/// made meanwhile stayed at the seat of their parent. Cause: a server refused requests beyond those that
/// may wait for other seats at once, also those of the servers for which they waited. Fix: they wait, and
/// take no thread; requests of servers need no other seat.
#[test]
fn more_clients_than_may_wait_make_and_remove_directories_at_two_seats() -> Result<()> {
    const CLIENTS: usize = 200;
    let live = SeatedStore::new(2);
    let options = LiveServerOptions { connections: 1024, ..server_options() };
    let serve = |seat| LiveServer::start(&live.repository, (NAME, seat), options.clone());
    let servers = [serve(0)?, serve(1)?];
    let (mut tree, root) = (live.connect(), LiveDir::root());
    let at_other_seat = (0..100).map(|number| format!("p{number}").into_bytes()).find_map(|name| {
        let made = tree.make_directory(&root, &name, 0o755).expect("made");
        (made.place.seat == 1).then_some(made)
    });
    let parents = [root, at_other_seat.expect("one of a hundred")];
    let all_at_once = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (live, all_at_once, parent) = (&live, &all_at_once, &parents[number % 2]);
            scope.spawn(move || {
                let mut tree = live.connect();
                let name = format!("d{number}").into_bytes();
                all_at_once.wait();
                tree.make_spread_directory(parent, &name, 0o755).expect("made");
                tree.change(Request::remove_directory(parent, &[&name])).expect("removed");
            });
        }
    });
    assert_eq!(tree.list(&parents[1])?, []);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}
