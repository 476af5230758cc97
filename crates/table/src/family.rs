// SPDX-License-Identifier: Apache-2.0
//! Family: records of another kind that a tree hosts beside its rows.
//!
//! A family has a memtable, an encoding in the log, and tables of its own. It shares the log, the
//! sequence numbers, the flushes and the manifest with the tree's rows, so that one operation's
//! order, durability and recovery do not depend on its kind. The tree calls a family through trait
//! objects: once for each operation of the family, and once for each freeze, flush, merge and
//! write of the log; no operation on rows does (docs/design/0010-families.md).

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use esker_base::Result;
use esker_base::wire::{WireDamage, WireInput};

use crate::manifest::TableRef;
use crate::tables::TableSource;
use crate::tree::FamilyWriter;

/// A kind of records that a tree hosts.
pub trait Family: Debug + Send + Sync {
    /// Returns an empty memtable whose log has just begun.
    fn memtable(&self) -> Box<dyn FamilyMemtable>;

    /// Returns an empty set of tables.
    fn tables(&self) -> Arc<dyn FamilyTables>;
}

/// Receives a decoded operation of a family: its number and its content, of a type that the family
/// defines.
pub type OperationVisitor<'a> = dyn FnMut(u64, &dyn Any) + 'a;

/// The memtable of a family, and the log of its operations; or a decoder of such a log.
pub trait FamilyMemtable: Any + Debug + Send + Sync {
    /// Returns whether nothing was put.
    fn is_empty(&self) -> bool;

    /// Memory that its records take, in bytes, approximately.
    fn bytes(&self) -> usize;

    /// The encoded operations that have not been written to the log yet; the tree clears them once
    /// they are.
    fn pending(&mut self) -> &mut Vec<u8>;

    /// Decodes the next operation of a log, which continues the operations decoded before, and
    /// passes it to `visit`; returns its sequence number. Puts nothing.
    ///
    /// # Errors
    /// The damage, with its offset.
    fn decode(
        &mut self,
        input: &mut WireInput,
        visit: &mut OperationVisitor,
    ) -> Result<u64, WireDamage>;

    /// Puts a decoded operation again, without logging it.
    fn replay(&mut self, operation: &dyn Any);

    /// Writes all records to tables; returns these in a manifest's order.
    ///
    /// # Errors
    /// Errors of the store.
    fn flush(&self, writer: &mut FamilyWriter) -> Result<Vec<TableRef>>;
}

/// The tables of a family in one change set. Immutable.
pub trait FamilyTables: Any + Debug + Send + Sync {
    /// Returns these tables below those of the family among `newer`, which are in a manifest's
    /// order.
    fn with_newer(&self, newer: &[TableRef], source: &TableSource) -> Arc<dyn FamilyTables>;

    /// Returns the schema and [`TableRef::run`] of each sorted run of tables, newest first.
    fn runs(&self) -> Vec<(u16, u64)>;

    /// Writes tables that replace all of these, in a manifest's order; returns `None` if there is
    /// nothing to merge.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    fn merge(&self, writer: &mut FamilyWriter) -> Result<Option<Vec<TableRef>>>;
}

/// The family of a tree that hosts rows alone: nothing is ever put, and a log that holds operations
/// of a family is refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFamily;

impl Family for NoFamily {
    fn memtable(&self) -> Box<dyn FamilyMemtable> {
        Box::new(NoOperations::default())
    }

    fn tables(&self) -> Arc<dyn FamilyTables> {
        Arc::new(Self)
    }
}

/// The memtable of [`NoFamily`].
#[derive(Debug, Default)]
struct NoOperations {
    pending: Vec<u8>,
}

impl FamilyMemtable for NoOperations {
    fn is_empty(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        0
    }

    fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    fn decode(
        &mut self,
        input: &mut WireInput,
        _visit: &mut OperationVisitor,
    ) -> Result<u64, WireDamage> {
        Err(input.damage("operations on rows alone"))
    }

    fn replay(&mut self, _operation: &dyn Any) {}

    fn flush(&self, _writer: &mut FamilyWriter) -> Result<Vec<TableRef>> {
        Ok(Vec::new())
    }
}

impl FamilyTables for NoFamily {
    fn with_newer(&self, _newer: &[TableRef], _source: &TableSource) -> Arc<dyn FamilyTables> {
        Arc::new(Self)
    }

    fn runs(&self) -> Vec<(u16, u64)> {
        Vec::new()
    }

    fn merge(&self, _writer: &mut FamilyWriter) -> Result<Option<Vec<TableRef>>> {
        Ok(None)
    }
}
