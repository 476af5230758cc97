// SPDX-License-Identifier: Apache-2.0
//! Histories of clients that change the same names at once: each directory behaves as if one
//! request after another had been carried out, also across servers that come and go.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use esker_base::{Kind, Random, Result};
use esker_fs::ops::RenameFlags;
use esker_live::client::{Answer, LiveDir, LiveFile, Request};
use esker_live::wire::{AttributeRequest, take_attributes};
use todc_utils::{Action, History, WGLChecker};

use crate::campaign;
use crate::linearizability::{Call, Specification, linearize};
use crate::served::LiveStore;

const CLIENTS: usize = 4;
/// Few of both, so that the calls of clients meet.
const DIRECTORIES: u64 = 2;
const NAMES: u64 = 3;
/// Requests of a client under way, at most.
const UNDER_WAY_MAX: u64 = 3;
/// Marks of files are permission bits.
const MARKS: u64 = 0o1000;
/// Minimum number of servers in a history: the calls may end before any server was replaced.
const SERVERS_MIN: u64 = 3;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Creates a file with a mark.
    Create(u8, u16),
    /// Reads the mark.
    Lookup(u8),
    SetMark(u8, u16),
    Unlink(u8),
    Rename(u8, u8),
    /// Renames only to a name that is free.
    Move(u8, u8),
    Exchange(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Mark(u16),
    Failed(Kind),
}

/// A directory: marks of files by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Directory(BTreeMap<u8, u16>);

impl Specification for Directory {
    type Operation = Operation;
    type Answer = Outcome;

    fn apply(&mut self, operation: &Operation) -> Outcome {
        let files = &mut self.0;
        let done = match *operation {
            Operation::Create(name, _) if files.contains_key(&name) => {
                return Outcome::Failed(Kind::Exists);
            }
            Operation::Create(name, mark) => {
                files.insert(name, mark);
                Some(())
            }
            Operation::Lookup(name) => match files.get(&name) {
                Some(mark) => return Outcome::Mark(*mark),
                None => None,
            },
            Operation::SetMark(name, mark) => files.get_mut(&name).map(|old| *old = mark),
            Operation::Unlink(name) => files.remove(&name).map(drop),
            Operation::Move(from, to) if files.contains_key(&from) && files.contains_key(&to) => {
                return Outcome::Failed(Kind::Exists);
            }
            Operation::Rename(from, to) | Operation::Move(from, to) => {
                files.remove(&from).map(|mark| files.extend([(to, mark)]))
            }
            Operation::Exchange(one, other) => {
                files.get(&one).copied().zip(files.get(&other).copied()).map(|(mark, second)| {
                    files.extend([(one, second), (other, mark)]);
                })
            }
        };
        done.map_or(Outcome::Failed(Kind::NotFound), |()| Outcome::Done)
    }
}

impl Operation {
    fn any(random: &mut Random) -> Self {
        let name = random.below(NAMES) as u8;
        let other = (name + 1 + random.below(NAMES - 1) as u8) % NAMES as u8;
        let mark = random.below(MARKS) as u16;
        match random.below(12) {
            0..3 => Self::Create(name, mark),
            3..6 => Self::Lookup(name),
            6 => Self::SetMark(name, mark),
            7..9 => Self::Unlink(name),
            9 => Self::Rename(name, other),
            10 => Self::Move(name, other),
            _ => Self::Exchange(name, other),
        }
    }

    fn request(self, dir: &LiveDir) -> Request {
        let name = |name: u8| [b'a' + name];
        let rename =
            |from: u8, to: u8, flags| Request::rename((dir, &name(from)), (dir, &name(to)), flags);
        match self {
            Self::Create(at, mark) => Request::create(dir, u32::from(mark), &[&name(at)]),
            Self::Lookup(at) => Request::lookup(dir, &[&name(at)]),
            Self::SetMark(at, mark) => {
                let mode = Some(u32::from(mark));
                let changes = AttributeRequest { mode, ..AttributeRequest::default() };
                Request::set_attributes(&LiveFile::at(dir, &name(at)), &changes)
            }
            Self::Unlink(at) => Request::unlink(dir, &[&name(at)]),
            Self::Rename(from, to) => rename(from, to, RenameFlags::Replace),
            Self::Move(from, to) => rename(from, to, RenameFlags::NoReplace),
            Self::Exchange(one, other) => rename(one, other, RenameFlags::Exchange),
        }
    }

    fn outcome(self, answer: &Answer) -> Result<Outcome> {
        let outcome = match self {
            Self::Lookup(_) => {
                answer.only(take_attributes).map(|found| Outcome::Mark((found.mode & 0o777) as u16))
            }
            _ => answer.only(|_| Ok(())).map(|()| Outcome::Done),
        };
        match outcome {
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Exists) => {
                Ok(Outcome::Failed(error.kind()))
            }
            outcome => outcome,
        }
    }
}

/// The calls of one client, each with its directory.
type ClientCalls = Vec<(usize, Call<Directory>)>;

/// Makes about `steps` calls of one client in `dirs`, or more until there were [`SERVERS_MIN`]
/// `servers`; `moments` orders the calls of all clients.
fn call_at_random(
    live: &LiveStore,
    dirs: &[LiveDir],
    (steps, is_durable): (usize, bool),
    servers: &AtomicU64,
    moments: &AtomicU64,
    random: &mut Random,
) -> Result<ClientCalls> {
    let mut tree = live.connect();
    let connection = tree.connection();
    let moment = || moments.fetch_add(1, Ordering::SeqCst);
    let mut calls = Vec::new();
    while calls.len() < steps || servers.load(Ordering::Relaxed) < SERVERS_MIN {
        let mut under_way = Vec::new();
        for _ in 0..1 + random.below(UNDER_WAY_MAX) {
            let (operation, dir) = (Operation::any(random), random.below(DIRECTORIES) as usize);
            let request = operation.request(&dirs[dir]);
            let request = if is_durable { request.durable() } else { request };
            let began = moment();
            under_way.push((connection.submit(request)?, operation, dir, began));
        }
        for (number, operation, dir, began) in under_way {
            let outcome = operation.outcome(&connection.wait(number)?)?;
            calls.push((dir, Call { operation, began, answer: Some((moment(), outcome)) }));
        }
    }
    tree.close().map(|()| calls)
}

/// Replaces servers at random until `is_done`, and counts them.
fn replace_servers(
    live: &LiveStore,
    may_die: bool,
    is_done: &AtomicBool,
    count: &AtomicU64,
    seed: u64,
) {
    let mut random = Random::from_seed(seed);
    let mut server = Some(live.serve());
    count.fetch_add(1, Ordering::Relaxed);
    while !is_done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5 + random.below(40)));
        match random.below(if may_die { 3 } else { 1 }) {
            // It flushes the changes that it has answered.
            0 => server.take().map_or(Ok(()), |server| server.end()).expect("an end"),
            1 => drop(server.take()),
            // Its successor fences it.
            _ => {}
        }
        drop(server.replace(live.serve()));
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs clients concurrently while servers come and go, and checks each directory. Returns the
/// number of servers.
fn check_history(seed: u64, steps: usize, is_durable: bool) -> Result<u64> {
    let live = LiveStore::new();
    let server = live.serve();
    let mut tree = live.connect();
    let dirs: Vec<LiveDir> = (0..DIRECTORIES)
        .map(|dir| tree.make_directory(&LiveDir::root(), &[b'0' + dir as u8], 0o755))
        .collect::<Result<_>>()?;
    tree.close()?;
    server.end()?;
    let (moments, is_done) = (AtomicU64::new(0), AtomicBool::new(false));
    let servers = AtomicU64::new(0);
    let calls = std::thread::scope(|scope| {
        let (live, dirs, moments, is_done) = (&live, &dirs, &moments, &is_done);
        let servers = &servers;
        let serving =
            scope.spawn(move || replace_servers(live, is_durable, is_done, servers, seed));
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|client| {
                let mut random = Random::from_seed(seed.wrapping_add(client + 1));
                let load = (steps, is_durable);
                scope.spawn(move || call_at_random(live, dirs, load, servers, moments, &mut random))
            })
            .collect();
        let calls: Result<Vec<ClientCalls>> =
            clients.into_iter().map(|client| client.join().expect("a client")).collect();
        is_done.store(true, Ordering::Relaxed);
        serving.join().expect("servers");
        calls
    });
    let calls = calls?.concat();
    for dir in 0..dirs.len() {
        let own = calls.iter().filter(|(at, _)| *at == dir).map(|(_, call)| call.clone());
        let own: Vec<Call<Directory>> = own.collect();
        if let Err(longest) = linearize(&own) {
            let last = &longest[longest.len().saturating_sub(20)..];
            panic!("directory {dir}: no order of {} calls; the longest ends {last:#?}", own.len());
        }
        assert!(second_opinion(&own), "directory {dir}: another checker finds no order");
    }
    Ok(servers.into_inner())
}

/// Durable answers, including those to reads, are consistent with one order of the calls even if
/// servers die.
#[test]
fn durable_calls_have_one_order_while_servers_die() {
    campaign::quick(3..5, |seed| {
        let servers = check_history(seed, 400, true).expect("all requests succeed");
        assert!(servers >= SERVERS_MIN, "{servers} servers");
    });
}

/// Answers that are not durable are consistent with one order of the calls as long as servers end
/// cleanly.
#[test]
fn calls_have_one_order_while_servers_hand_over() {
    campaign::quick(3..5, |seed| {
        let servers = check_history(seed, 2_000, false).expect("all requests succeed");
        assert!(servers >= SERVERS_MIN, "{servers} servers");
    });
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_calls_have_one_order_while_servers_come_and_go() {
    let mut servers = 0;
    campaign::soak(|seed| {
        let is_durable = seed.is_multiple_of(2);
        servers += check_history(seed, 600, is_durable).expect("all requests succeed");
    });
    println!("{servers} servers");
}

/// The specification for the other checker: an operation with its outcome, once that is known.
struct Answered;

impl todc_utils::Specification for Answered {
    type State = Directory;
    type Operation = (Operation, Option<Outcome>);

    fn init() -> Directory {
        Directory::default()
    }

    fn apply((operation, outcome): &Self::Operation, state: &Directory) -> (bool, Directory) {
        let mut after = state.clone();
        let fits = *outcome == Some(after.apply(operation));
        (fits, after)
    }
}

/// The verdict of another implementation on `calls`, which all have answers.
fn second_opinion(calls: &[Call<Directory>]) -> bool {
    let mut actions = Vec::new();
    for (process, call) in calls.iter().enumerate() {
        let (answered, outcome) = call.answer.expect("an answer");
        actions.push((call.began, process, Action::Call((call.operation, None))));
        let answer = Action::Response((call.operation, Some(outcome)));
        actions.push((answered, process, answer));
    }
    actions.sort_by_key(|(moment, ..)| *moment);
    let actions = actions.into_iter().map(|(_, process, action)| (process, action)).collect();
    WGLChecker::<Answered>::is_linearizable(History::from_actions(actions))
}

#[test]
fn an_order_is_found_exactly_where_there_is_one() {
    let (mut with, mut without) = (0, 0);
    campaign::quick(0..3_000, |seed| {
        let mut random = Random::from_seed(seed);
        let calls = some_calls(&mut random);
        let is_found = linearize(&calls).is_ok();
        assert_eq!(is_found, second_opinion(&calls), "{calls:#?}");
        *(if is_found { &mut with } else { &mut without }) += 1;
    });
    assert!(with > 500 && without > 500, "{with} with an order, {without} without");
}

/// Calls that overlap at random, with the answers of some order or a wrong one among them.
fn some_calls(random: &mut Random) -> Vec<Call<Directory>> {
    let count = 2 + random.below(7);
    let mut state = Directory::default();
    let mut calls: Vec<Call<Directory>> = (0..count)
        .map(|number| {
            let operation = Operation::any(random);
            let outcome = state.apply(&operation);
            // Each happens at a multiple of 1,000, and no two moments are equal.
            let at = (number + 10) * 1_000;
            let around = |random: &mut Random| random.below(4) * 900 + number + 1;
            let (began, answered) = (at - around(random), at + around(random));
            Call { operation, began, answer: Some((answered, outcome)) }
        })
        .collect();
    if random.one_in(2) {
        let wrong = random.below(count) as usize;
        let answer = calls[wrong].answer.as_mut().expect("an answer");
        answer.1 = match answer.1 {
            Outcome::Done => Outcome::Failed(Kind::NotFound),
            Outcome::Mark(mark) => Outcome::Mark(mark ^ 1),
            Outcome::Failed(_) => Outcome::Done,
        };
    }
    calls
}

#[test]
fn a_call_without_an_answer_may_have_happened_or_not() {
    let call = |operation, began, answer| Call::<Directory> { operation, began, answer };
    let lost = call(Operation::Create(0, 7), 1, None);
    let sees = |moment, outcome| call(Operation::Lookup(0), moment, Some((moment + 1, outcome)));
    let (absent, present) = (Outcome::Failed(Kind::NotFound), Outcome::Mark(7));
    linearize(&[lost.clone(), sees(2, absent), sees(4, present)]).expect("it happened between");
    linearize(&[lost.clone(), sees(2, absent), sees(4, absent)]).expect("it never happened");
    let (found, gone) = (sees(2, present), sees(4, absent));
    assert_eq!(linearize(&[lost, found, gone]).expect_err("it cannot be undone").len(), 2);
}
