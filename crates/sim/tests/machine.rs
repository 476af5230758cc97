// SPDX-License-Identifier: Apache-2.0
//! The machine itself: turns, faults, and their effects on a store.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{FaultEffect, SharedStore, Store, conformance};
use esker_sim::{ActorId, ActorProcess, FaultKind, MachineOptions, RequestFault, SimulatedMachine};
use parking_lot::Mutex;

fn options(seed: u64, faults: Vec<RequestFault>) -> MachineOptions {
    MachineOptions { seed, switch_one_in: 2, start_ns: 1, faults, is_traced: true }
}

/// Runs `act` as the only actor of a machine with `faults`.
fn alone(
    faults: Vec<RequestFault>,
    act: impl FnOnce(&Arc<SimulatedMachine>, Arc<ActorProcess>) + Send,
) {
    let machine = SimulatedMachine::new(1, options(1, faults));
    let process = machine.start_process(ActorId(0));
    machine.run(vec![Box::new(|| act(&machine, process))]);
    assert_eq!(machine.outcome().failure, None);
}

#[test]
fn the_store_conforms() {
    let machine = SimulatedMachine::new(1, options(1, Vec::new()));
    let store: SharedStore = machine.observer();
    conformance::all(&store);
}

#[test]
fn turns_follow_from_the_seed() {
    let order = |seed: u64| {
        let machine = SimulatedMachine::new(3, options(seed, Vec::new()));
        let order = Mutex::new(Vec::new());
        let act = |actor: usize| {
            let (machine, order) = (&machine, &order);
            let act = move || {
                let process = machine.start_process(ActorId(actor));
                for step in 0..20 {
                    process.put_if_absent(&format!("{actor}/{step}"), b"").expect("put");
                    order.lock().push(actor);
                }
            };
            Box::new(act) as Box<dyn FnOnce() + Send + '_>
        };
        machine.run((0..3).map(act).collect());
        assert_eq!(machine.outcome().requests, 60);
        order.into_inner()
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}

#[test]
fn a_process_that_died_reaches_nothing() {
    let kind = FaultKind::ProcessDeath { effect: FaultEffect::Full, loses_buffers: false };
    alone(vec![RequestFault { at: 2, kind }], |machine, process| {
        process.put_if_absent("a", b"").expect("put");
        let kind = process.put_if_absent("b", b"").expect_err("it dies").kind();
        assert_eq!(kind, Kind::Closed);
        assert!(process.is_dead());
        assert_eq!(process.put_if_absent("c", b"").expect_err("it is dead").kind(), Kind::Closed);
        let next = machine.start_process(ActorId(0));
        assert_eq!(next.list_names("").expect("list"), ["a", "b"]);
    });
}

#[test]
fn power_loss_keeps_what_was_synced() {
    alone(vec![RequestFault { at: 5, kind: FaultKind::PowerLoss }], |machine, process| {
        process.put_if_absent("object", b"whole").expect("put");
        let log = process.append_log("log").expect("open");
        log.append(b"synced").expect("append");
        log.sync().expect("sync");
        log.append(b"lost").expect_err("the power is lost");
        let next = machine.start_process(ActorId(0));
        assert_eq!(next.get("object", 10).expect("get"), &b"whole"[..]);
        assert!(next.get("log", 100).expect("get").starts_with(b"synced"));
    });
}
