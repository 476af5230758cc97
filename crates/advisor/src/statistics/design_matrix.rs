// SPDX-License-Identifier: Apache-2.0
//! Design matrix: named columns of regressors, all of one length and finite. The constant column of
//! a regression is not among them: fits add it.

use esker_base::{Error, Kind, Result};

use super::summary::require_finite;

/// Columns that a matrix may have; fits take time with their square.
pub const COLUMNS_MAX: usize = 256;

/// Regressors by column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesignMatrix {
    names: Vec<String>,
    columns: Vec<Vec<f64>>,
    rows: usize,
}

impl DesignMatrix {
    /// An empty matrix for `rows` rows.
    #[must_use]
    pub fn new(rows: usize) -> Self {
        Self { names: Vec::new(), columns: Vec::new(), rows }
    }

    /// Adds a column.
    ///
    /// # Errors
    /// `Invalid` if its length differs from that of the matrix, it has a value that is not finite,
    /// or its name is taken; `TooLarge` over [`COLUMNS_MAX`].
    pub fn push(&mut self, name: impl Into<String>, values: Vec<f64>) -> Result<()> {
        let name = name.into();
        let invalid = |message: String| Err(Error::new(Kind::Invalid, message));
        if values.len() != self.rows {
            return invalid(format!("{name} has {} rows, not {}", values.len(), self.rows));
        }
        if self.names.contains(&name) {
            return invalid(format!("two variables are called {name}"));
        }
        if self.columns.len() == COLUMNS_MAX {
            let message = format!("more than {COLUMNS_MAX} variables");
            return Err(Error::new(Kind::TooLarge, message));
        }
        require_finite(&name, &values)?;
        self.names.push(name);
        self.columns.push(values);
        Ok(())
    }

    /// The matrix of some of the columns, in that order.
    ///
    /// # Panics
    /// If an index is out of range.
    #[must_use]
    pub fn select(&self, indices: &[usize]) -> Self {
        Self {
            names: indices.iter().map(|index| self.names[*index].clone()).collect(),
            columns: indices.iter().map(|index| self.columns[*index].clone()).collect(),
            rows: self.rows,
        }
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The names of the columns.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &[Vec<f64>] {
        &self.columns
    }
}
