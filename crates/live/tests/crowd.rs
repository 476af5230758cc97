// SPDX-License-Identifier: Apache-2.0
//! Crowds: more clients wait for another seat than a server lets wait at once.

use std::sync::Barrier;

use esker_base::Result;
use esker_live::client::{LiveDir, Request};
use esker_live::{LiveServer, LiveServerOptions};

use crate::seats::SeatedStore;
use crate::served::{NAME, server_options};

/// Symptom: removals failed with `Unavailable` although all servers answered, and directories that were
/// made meanwhile stayed at the seat of their parent. Cause: a server refused requests beyond those that
/// may wait for other seats at once. Fix: they wait, and take no thread.
#[test]
fn more_clients_than_may_wait_remove_directories_at_another_seat() -> Result<()> {
    const CLIENTS: usize = 200;
    let live = SeatedStore::new(2);
    let options = LiveServerOptions { connections: 1024, ..server_options() };
    let serve = |seat| LiveServer::start(&live.repository, (NAME, seat), options.clone());
    let servers = [serve(0)?, serve(1)?];
    let (mut tree, root) = (live.connect(), LiveDir::root());
    for number in 0..CLIENTS {
        tree.make_spread_directory(&root, format!("d{number}").as_bytes(), 0o755)?;
    }
    let all_at_once = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (live, all_at_once) = (&live, &all_at_once);
            scope.spawn(move || {
                let mut tree = live.connect();
                all_at_once.wait();
                let name = format!("d{number}").into_bytes();
                tree.change(Request::remove_directory(&LiveDir::root(), &[&name]))
                    .expect("removed");
            });
        }
    });
    assert_eq!(tree.list(&root)?, []);
    for server in servers {
        server.end()?;
    }
    live.assert_sound()
}
