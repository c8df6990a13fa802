//! Values of both databases: integer, text and bytes, each of which can be NULL.
//!
//! Statements are written once, in the SQL that both databases share, with `$1` placeholders. `= ANY($1)`
//! takes a list.

use crate::StoreError;

/// A value bound to a statement or read from a row.
#[derive(Clone)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Blob(Option<Vec<u8>>),
    Ints(Vec<i64>),
    Texts(Vec<String>),
    Blobs(Vec<Vec<u8>>),
}

/// Errors about a row show it. Bytes may be a secret, so only their number is shown.
impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(value) => write!(f, "Int({value:?})"),
            Self::Text(value) => write!(f, "Text({value:?})"),
            Self::Blob(value) => write!(f, "Blob({:?} bytes)", value.as_ref().map(Vec::len)),
            Self::Ints(values) => write!(f, "Ints({values:?})"),
            Self::Texts(values) => write!(f, "Texts({values:?})"),
            Self::Blobs(values) => write!(f, "Blobs({})", values.len()),
        }
    }
}

macro_rules! from {
    ($($from:ty, $value:ident => $to:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $to
            }
        }
    )*};
}

from! {
    i64, v => Self::Int(Some(v));
    u64, v => Self::Int(Some(v as i64));
    u32, v => Self::Int(Some(i64::from(v)));
    u16, v => Self::Int(Some(i64::from(v)));
    bool, v => Self::Int(Some(i64::from(v)));
    Option<i64>, v => Self::Int(v);
    &str, v => Self::Text(Some(v.to_owned()));
    String, v => Self::Text(Some(v));
    Option<String>, v => Self::Text(v);
    Vec<u8>, v => Self::Blob(Some(v));
    Option<Vec<u8>>, v => Self::Blob(v);
    Vec<i64>, v => Self::Ints(v);
    Vec<String>, v => Self::Texts(v);
    Vec<Vec<u8>>, v => Self::Blobs(v);
}

/// The values of a statement, in order of their placeholders.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::value::Value::from($value)),*] };
}
pub(crate) use args;

/// A row that was read.
#[derive(Clone, Debug)]
pub(crate) struct Row(pub Vec<Value>);

impl Row {
    fn wrong(&self, column: usize, wanted: &str) -> StoreError {
        StoreError::Corrupt(format!("column {column} of {self:?} is not {wanted}"))
    }

    pub fn opt_int(&self, column: usize) -> Result<Option<i64>, StoreError> {
        match self.0.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            Some(Value::Text(None) | Value::Blob(None)) => Ok(None),
            _ => Err(self.wrong(column, "an integer")),
        }
    }

    pub fn opt_text(&self, column: usize) -> Result<Option<&str>, StoreError> {
        match self.0.get(column) {
            Some(Value::Text(value)) => Ok(value.as_deref()),
            Some(Value::Int(None) | Value::Blob(None)) => Ok(None),
            _ => Err(self.wrong(column, "text")),
        }
    }

    pub fn opt_blob(&self, column: usize) -> Result<Option<&[u8]>, StoreError> {
        match self.0.get(column) {
            Some(Value::Blob(value)) => Ok(value.as_deref()),
            Some(Value::Int(None) | Value::Text(None)) => Ok(None),
            _ => Err(self.wrong(column, "bytes")),
        }
    }

    pub fn int(&self, column: usize) -> Result<i64, StoreError> {
        self.opt_int(column)?.ok_or_else(|| self.wrong(column, "set"))
    }

    /// An unsigned number: an id, a revision or a time.
    pub fn number(&self, column: usize) -> Result<u64, StoreError> {
        u64::try_from(self.int(column)?).map_err(|_| self.wrong(column, "an unsigned number"))
    }

    /// An unsigned number of a smaller type.
    pub fn unsigned<T: TryFrom<i64>>(&self, column: usize) -> Result<T, StoreError> {
        T::try_from(self.int(column)?).map_err(|_| self.wrong(column, std::any::type_name::<T>()))
    }

    pub fn text(&self, column: usize) -> Result<&str, StoreError> {
        self.opt_text(column)?.ok_or_else(|| self.wrong(column, "set"))
    }

    pub fn blob(&self, column: usize) -> Result<&[u8], StoreError> {
        self.opt_blob(column)?.ok_or_else(|| self.wrong(column, "set"))
    }

    /// A text column that parses as `T`.
    pub fn parse<T: std::str::FromStr>(&self, column: usize) -> Result<T, StoreError> {
        self.text(column)?.parse().map_err(|_| self.wrong(column, std::any::type_name::<T>()))
    }

    /// A text column that parses as `T`, or NULL.
    pub fn parse_opt<T: std::str::FromStr>(&self, column: usize) -> Result<Option<T>, StoreError> {
        match self.opt_text(column)? {
            None => Ok(None),
            Some(_) => self.parse(column).map(Some),
        }
    }

    /// A text column that holds a comma-separated list.
    pub fn parse_list<T: std::str::FromStr>(&self, column: usize) -> Result<Vec<T>, StoreError> {
        let parts = self.text(column)?.split(',').filter(|part| !part.is_empty());
        parts.map(|part| part.parse().map_err(|_| self.wrong(column, std::any::type_name::<T>()))).collect()
    }
}

/// The inverse of [`Row::parse_list`].
pub(crate) fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
