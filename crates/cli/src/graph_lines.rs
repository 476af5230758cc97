// SPDX-License-Identifier: Apache-2.0
//! Graph lines: draws change sets and their bases, with one lane for each line of descent.
//!
//! ```text
//! ●    c            both a and b
//! ├─╮
//! ● │  a
//! │ ●  b
//! ├─╯
//! ●    base
//! ```
//! A lane waits for one set: the next node of that set takes the leftmost such lane, and other
//! lanes that wait for it end there.

use std::fmt::Debug;

/// The characters of a drawing.
#[derive(Clone, Copy, Debug)]
pub struct LineCharacters {
    pass: char,
    across: char,
    cross: char,
    branch: char,
    opens: char,
    closes: char,
    joins: char,
    joins_left: char,
}

/// Box characters.
pub const BOXES: LineCharacters = LineCharacters {
    pass: '│',
    across: '─',
    cross: '┼',
    branch: '├',
    opens: '╮',
    closes: '╯',
    joins: '┤',
    joins_left: '├',
};

/// ASCII characters.
pub const ASCII: LineCharacters = LineCharacters {
    pass: '|',
    across: '-',
    cross: '+',
    branch: '|',
    opens: '.',
    closes: '\'',
    joins: '|',
    joins_left: '|',
};

/// The lines of one drawn node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrawnNode {
    /// Prefix of the node's own line.
    pub node: String,
    /// Prefixes of further lines about the node, and of lines that only connect.
    pub below: Vec<String>,
}

/// A drawing, produced node by node; each node comes before its parents.
#[derive(Debug)]
pub struct GraphLines<T> {
    pen: LineCharacters,
    lanes: Vec<Option<T>>,
}

impl<T: Copy + Eq + Debug> GraphLines<T> {
    /// Creates an empty drawing.
    pub fn new(pen: LineCharacters) -> Self {
        Self { pen, lanes: Vec::new() }
    }

    /// Draws `node`, whose parents are `parents`, as `mark`.
    pub fn draw(&mut self, node: T, parents: &[T], mark: char) -> DrawnNode {
        let lane = self.lane_of(node);
        let row = self.row(|index, pass| if index == lane { mark } else { pass });
        let mut below = Vec::new();
        for other in (lane + 1..self.lanes.len()).rev() {
            if self.lanes[other] == Some(node) {
                self.lanes[other] = None;
                below.push(self.connection(lane, other, self.pen.closes));
            }
        }
        self.lanes[lane] = None;
        let mut parents = parents.iter().copied();
        // The first parent takes over the lane.
        if let Some(first) = parents.next() {
            self.lanes[lane] = Some(first);
        }
        for parent in parents {
            below.push(match self.lanes.iter().position(|waits| *waits == Some(parent)) {
                Some(other) if other > lane => self.connection(lane, other, self.pen.joins),
                Some(other) if other < lane => self.connection(other, lane, self.pen.joins_left),
                Some(_) => continue,
                None => {
                    let other = self.free_lane(lane + 1);
                    let line = self.connection(lane, other, self.pen.opens);
                    self.lanes[other] = Some(parent);
                    line
                }
            });
        }
        while self.lanes.last().is_some_and(Option::is_none) {
            self.lanes.pop();
        }
        DrawnNode { node: row, below }
    }

    /// Prefix of a line about the node drawn last.
    pub fn margin(&self) -> String {
        self.row(|_, pass| pass)
    }

    fn lane_of(&mut self, node: T) -> usize {
        match self.lanes.iter().position(|waits| *waits == Some(node)) {
            Some(lane) => lane,
            None => {
                let lane = self.free_lane(0);
                self.lanes[lane] = Some(node);
                lane
            }
        }
    }

    fn free_lane(&mut self, from: usize) -> usize {
        let free = (from..self.lanes.len()).find(|lane| self.lanes[*lane].is_none());
        free.unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        })
    }

    fn row(&self, cell: impl Fn(usize, char) -> char) -> String {
        let mut row = String::new();
        for (index, waits) in self.lanes.iter().enumerate() {
            let pass = if waits.is_some() { self.pen.pass } else { ' ' };
            row.push(cell(index, pass));
            row.push(' ');
        }
        row
    }

    /// A line from lane `from` rightwards to lane `to`, ending in `end`.
    fn connection(&self, from: usize, to: usize, end: char) -> String {
        let mut row = String::new();
        for (index, waits) in self.lanes.iter().enumerate() {
            let across = (from..to).contains(&index);
            row.push(match (index, waits) {
                (index, _) if index == from => self.pen.branch,
                (index, _) if index == to => end,
                (_, Some(_)) if across => self.pen.cross,
                (_, None) if across => self.pen.across,
                (_, Some(_)) => self.pen.pass,
                (_, None) => ' ',
            });
            row.push(if across { self.pen.across } else { ' ' });
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawing(nodes: &[(u8, &[u8])]) -> Vec<String> {
        let mut lines = GraphLines::new(BOXES);
        let mut drawing = Vec::new();
        for (node, parents) in nodes {
            let drawn = lines.draw(*node, parents, '●');
            drawing.push(format!("{}{node}", drawn.node));
            drawing.extend(drawn.below.iter().map(|line| line.trim_end().to_owned()));
        }
        drawing
    }

    #[test]
    fn a_diamond_opens_and_closes() {
        let lines = drawing(&[(4, &[2, 3]), (2, &[1]), (3, &[1]), (1, &[])]);
        assert_eq!(lines, ["● 4", "├─╮", "● │ 2", "│ ● 3", "● │ 1", "├─╯"]);
    }

    #[test]
    fn strangers_stand_apart() {
        assert_eq!(drawing(&[(1, &[]), (2, &[])]), ["● 1", "● 2"]);
    }

    #[test]
    fn a_lane_that_waits_already_is_joined() {
        let lines = drawing(&[(5, &[3, 1]), (4, &[1]), (3, &[1]), (1, &[])]);
        assert_eq!(lines, ["● 5", "├─╮", "│ │ ● 4", "● │ │ 3", "● │ │ 1", "├─┼─╯", "├─╯"]);
    }
}
