// SPDX-License-Identifier: Apache-2.0
//! Linearizability: a check that concurrent calls could have happened one after another, each at a
//! moment between its beginning and its answer.
//!
//! The search takes calls in the order of their beginnings and goes back where answers do not fit;
//! it visits each pair of calls done and state once. A call without an answer may have happened at
//! any time after its beginning, or never. Objects that share nothing are checked separately.
//! Source: Wing and Gong, "Testing and verifying concurrent objects" (1993), with the memory of
//! Lowe, "Testing for linearizability" (2017); Herlihy and Wing (1990), §3.3, on locality.

use std::fmt::Debug;
use std::hash::Hash;

use hashbrown::HashSet;

/// An object that carries out one operation after another.
pub trait Specification: Clone + Default + Eq + Hash {
    type Operation: Clone + Debug;
    type Answer: Clone + Debug + PartialEq;

    /// Carries out `operation`.
    fn apply(&mut self, operation: &Self::Operation) -> Self::Answer;
}

/// A call, with the moments of its beginning and answer; no two moments are equal.
#[derive(Clone, Debug)]
pub struct Call<S: Specification> {
    pub operation: S::Operation,
    pub began: u64,
    pub answer: Option<(u64, S::Answer)>,
}

/// A call that the search has put into the order, and the state before it.
struct Taken<S> {
    call: usize,
    before: S,
}

/// Finds an order of `calls` in which `S` gives the same answers.
///
/// # Errors
/// If there is none: the calls of the longest order that was found.
pub fn linearize<S: Specification>(calls: &[Call<S>]) -> Result<(), Vec<Call<S>>> {
    let mut calls = calls.to_vec();
    calls.sort_by_key(|call| call.began);
    let mut is_done = vec![false; calls.len()];
    let mut left = calls.iter().filter(|call| call.answer.is_some()).count();
    let (mut state, mut visited) = (S::default(), HashSet::new());
    let (mut order, mut longest): (Vec<Taken<S>>, Vec<usize>) = Default::default();
    let mut from = 0;
    while left > 0 {
        match next_call(&calls, &is_done, &state, from) {
            Some((call, after)) => {
                from = call + 1;
                is_done[call] = true;
                if !visited.insert((is_done.clone(), after.clone())) {
                    is_done[call] = false;
                    continue;
                }
                left -= usize::from(calls[call].answer.is_some());
                order.push(Taken { call, before: std::mem::replace(&mut state, after) });
                if order.len() > longest.len() {
                    longest = order.iter().map(|taken| taken.call).collect();
                }
                from = 0;
            }
            None => {
                let Some(Taken { call, before }) = order.pop() else {
                    return Err(longest.into_iter().map(|call| calls[call].clone()).collect());
                };
                is_done[call] = false;
                left += usize::from(calls[call].answer.is_some());
                (state, from) = (before, call + 1);
            }
        }
    }
    Ok(())
}

/// The first call from `from` on that may be next, with the state after it.
fn next_call<S: Specification>(
    calls: &[Call<S>],
    is_done: &[bool],
    state: &S,
    from: usize,
) -> Option<(usize, S)> {
    let undone = || calls.iter().enumerate().filter(|(call, _)| !is_done[*call]);
    // Every call that began after another was answered comes after that.
    let answers = undone().filter_map(|(_, call)| call.answer.as_ref());
    let first_answer = answers.map(|(answered, _)| *answered).min()?;
    undone()
        .take_while(|(_, call)| call.began < first_answer)
        .filter(|(call, _)| *call >= from)
        .find_map(|(number, call)| {
            let mut after = state.clone();
            let answer = after.apply(&call.operation);
            let fits = call.answer.as_ref().is_none_or(|(_, given)| *given == answer);
            fits.then_some((number, after))
        })
}
