// SPDX-License-Identifier: Apache-2.0
//! Parquet table: files of Apache Parquet whose columns have one value for each row.
//!
//! A reader takes the columns that it is asked for, in batches, from files of any writer: a column
//! may be required, optional, or repeated with one value for each row. The memory is that of a
//! batch and of one page of each column, which Parquet bounds to 2 GiB. Bytes that are no such
//! table give `Corrupt`. The writer compresses with Snappy, which every reader knows.

use std::fs::File;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use parquet::basic::{Compression, ConvertedType, Repetition, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

/// Begins every file of Parquet.
pub const PARQUET_MAGIC: &[u8] = b"PAR1";

/// Rows of a batch.
const BATCH_ROWS: usize = 8_192;

/// Values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnValues {
    /// Integers of 32 or 64 bits.
    Ints(Vec<i64>),
    /// Floating-point numbers of 32 or 64 bits.
    Floats(Vec<f64>),
    /// Bytes, which are empty where an optional column has no value.
    Texts(Vec<ByteArray>),
}

impl ColumnValues {
    fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Texts(values) => values.len(),
        }
    }

    /// The bytes of all texts.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        match self {
            Self::Texts(values) => values.iter().map(ByteArray::len).sum(),
            _ => 0,
        }
    }

    /// The integer of `row`; `None` in a column of others.
    #[must_use]
    pub fn int(&self, row: usize) -> Option<i64> {
        match self {
            Self::Ints(values) => values.get(row).copied(),
            _ => None,
        }
    }

    /// The number of `row`; `None` in a column of texts.
    #[must_use]
    pub fn float(&self, row: usize) -> Option<f64> {
        match self {
            Self::Ints(values) => values.get(row).map(|value| *value as f64),
            Self::Floats(values) => values.get(row).copied(),
            Self::Texts(_) => None,
        }
    }

    /// The text of `row`; `None` in a column of numbers and for bytes that are not UTF-8.
    #[must_use]
    pub fn text(&self, row: usize) -> Option<&str> {
        match self {
            Self::Texts(values) => std::str::from_utf8(values.get(row)?.data()).ok(),
            _ => None,
        }
    }
}

/// Rows that follow each other, with the columns that were asked for.
#[derive(Debug)]
pub struct RowBatch {
    /// The row of the file with which the batch begins.
    pub first_row: u64,
    /// The columns, in the order in which they were asked for.
    pub columns: Vec<ColumnValues>,
}

impl RowBatch {
    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, ColumnValues::len)
    }
}

/// A file of Parquet that is open for reading.
pub struct ParquetTable {
    reader: SerializedFileReader<File>,
    object: String,
}

impl ParquetTable {
    /// Opens `file`; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` for a file that is not of Parquet or whose columns are nested; as the file system
    /// answers.
    pub fn open(file: File, object: &str) -> Result<Self> {
        let reader = guarded(object, || SerializedFileReader::new(file))?;
        let schema = reader.metadata().file_metadata().schema_descr();
        if schema.columns().iter().any(|column| column.path().parts().len() > 1) {
            return Err(Error::corrupt(object, 0, "its columns are nested"));
        }
        Ok(Self { reader, object: object.to_owned() })
    }

    /// True if there is a column `name`.
    #[must_use]
    pub fn has_column(&self, name: &str) -> bool {
        self.column_index(name).is_some()
    }

    fn column_index(&self, name: &str) -> Option<usize> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.columns().iter().position(|column| column.name() == name)
    }

    /// Reads all rows of the columns `names`, in batches.
    ///
    /// # Errors
    /// `Corrupt` if a column is missing, if a row has no value or several, or for damaged bytes; as
    /// `take` and the file system answer.
    pub fn read(
        &self,
        names: &[&str],
        mut take: impl FnMut(&RowBatch) -> Result<()>,
    ) -> Result<()> {
        let object = &self.object;
        let index_of = |name: &&str| {
            let index = self.column_index(name);
            index.ok_or_else(|| Error::corrupt(object, 0, format!("no column `{name}`")))
        };
        let indices = names.iter().map(index_of).collect::<Result<Vec<_>>>()?;
        let mut first_row = 0;
        for group in 0..self.reader.num_row_groups() {
            let mut columns: Vec<ColumnReader> = guarded(object, || {
                let group = self.reader.get_row_group(group)?;
                indices.iter().map(|index| group.get_column_reader(*index)).collect()
            })?;
            loop {
                let read = |(column, name): (&mut ColumnReader, &&str)| {
                    let values = guarded(object, || read_values(column))?;
                    values.ok_or_else(|| {
                        let what = format!("column `{name}` has not one value for each row");
                        Error::corrupt(object, first_row, what)
                    })
                };
                let columns =
                    columns.iter_mut().zip(names).map(read).collect::<Result<Vec<_>>>()?;
                let batch = RowBatch { first_row, columns };
                if batch.columns.iter().any(|column| column.len() != batch.rows()) {
                    return Err(Error::corrupt(object, first_row, "columns differ in length"));
                }
                if batch.rows() == 0 {
                    break;
                }
                take(&batch)?;
                first_row += batch.rows() as u64;
            }
        }
        Ok(())
    }
}

/// Runs `read`; the library may panic for damaged bytes, which is the same to a caller as an error.
fn guarded<T>(object: &str, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(read));
    let done = done.unwrap_or_else(|_| Err(ParquetError::General("damaged".to_owned())));
    done.map_err(|error| match io_error(error) {
        Ok(error) => Error::io(error, object.to_owned()),
        // The library says so of codecs that were not built in.
        Err(error) if error.to_string().contains("Disabled feature") => {
            let what = format!(
                "{object} is compressed by a codec that is not read here: write it without \
                 compression or with snappy ({error})"
            );
            Error::new(Kind::Unsupported, what)
        }
        Err(error) => Error::corrupt(object, 0, error),
    })
}

/// The error of the file system, or the one of the library.
fn io_error(error: ParquetError) -> Result<std::io::Error, ParquetError> {
    match error {
        ParquetError::External(error) => {
            error.downcast().map(|error| *error).map_err(ParquetError::External)
        }
        error => Err(error),
    }
}

/// The next values; `None` if a row has not one value, or values of another type.
fn read_values(column: &mut ColumnReader) -> Result<Option<ColumnValues>, ParquetError> {
    Ok(match column {
        ColumnReader::Int32ColumnReader(column) => read_column(column, None)?
            .map(|values| ColumnValues::Ints(values.into_iter().map(i64::from).collect())),
        ColumnReader::Int64ColumnReader(column) => {
            read_column(column, None)?.map(ColumnValues::Ints)
        }
        ColumnReader::FloatColumnReader(column) => read_column(column, None)?
            .map(|values| ColumnValues::Floats(values.into_iter().map(f64::from).collect())),
        ColumnReader::DoubleColumnReader(column) => {
            read_column(column, None)?.map(ColumnValues::Floats)
        }
        ColumnReader::ByteArrayColumnReader(column) => {
            read_column(column, Some(&ByteArray::from("")))?.map(ColumnValues::Texts)
        }
        _ => None,
    })
}

/// The next values, with `absent` where an optional column has none.
fn read_column<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    absent: Option<&T::T>,
) -> Result<Option<Vec<T::T>>, ParquetError> {
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let (rows, present, levels) = column.read_records(
        BATCH_ROWS,
        Some(&mut definitions),
        Some(&mut repetitions),
        &mut values,
    )?;
    if levels != rows || (present != rows && (absent.is_none() || !repetitions.is_empty())) {
        return Ok(None);
    }
    if present == rows {
        return Ok(Some(values));
    }
    let mut values = values.into_iter();
    let filled = definitions.iter().map(|level| match level {
        0 => absent.cloned(),
        _ => values.next(),
    });
    Ok(filled.collect())
}

/// Writes `columns`, which have names and equally many values, as one row group.
///
/// # Errors
/// As the output answers.
pub fn write_parquet<W: Write + Send>(
    output: W,
    columns: &[(&str, ColumnValues)],
    object: &str,
) -> Result<W> {
    let rows = columns.first().map_or(0, |(_, values)| values.len());
    assert!(columns.iter().all(|(_, values)| values.len() == rows), "columns differ in length");
    let write = || {
        let fields = columns.iter().map(|(name, values)| Ok(Arc::new(field(name, values)?)));
        let fields = fields.collect::<Result<Vec<_>, ParquetError>>()?;
        let schema = Type::group_type_builder("schema").with_fields(fields).build()?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = SerializedFileWriter::new(output, Arc::new(schema), Arc::new(properties))?;
        let mut group = writer.next_row_group()?;
        for (_, values) in columns {
            match values {
                ColumnValues::Ints(values) => write_column::<Int64Type, W>(&mut group, values)?,
                ColumnValues::Floats(values) => write_column::<DoubleType, W>(&mut group, values)?,
                ColumnValues::Texts(values) => {
                    write_column::<ByteArrayType, W>(&mut group, values)?;
                }
            }
        }
        group.close()?;
        writer.into_inner()
    };
    write().map_err(|error| match io_error(error) {
        Ok(error) => Error::io(error, object.to_owned()),
        Err(error) => Error::new(Kind::Invalid, format!("{object}: {error}")),
    })
}

fn field(name: &str, values: &ColumnValues) -> Result<Type, ParquetError> {
    let (physical, converted) = match values {
        ColumnValues::Ints(_) => (PhysicalType::INT64, ConvertedType::NONE),
        ColumnValues::Floats(_) => (PhysicalType::DOUBLE, ConvertedType::NONE),
        ColumnValues::Texts(_) => (PhysicalType::BYTE_ARRAY, ConvertedType::UTF8),
    };
    let builder = Type::primitive_type_builder(name, physical);
    builder.with_repetition(Repetition::REQUIRED).with_converted_type(converted).build()
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("the schema has as many columns");
    let typed: &mut ColumnWriterImpl<'_, T> = column.typed::<T>();
    typed.write_batch(values, None, None)?;
    column.close()
}
