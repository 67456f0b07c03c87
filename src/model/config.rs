//! Reading a `config.json`: bounded, typed, and telling an absent field from a null one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// Most bytes a configuration may have; a larger file is refused before it is read.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Most layers a configuration may ask for.
pub const MAX_LAYERS: u32 = 4096;
/// Largest head count, width or state size accepted.
pub const MAX_SIZE: u32 = 1 << 24;
/// Largest position count accepted: windows, chunks, trained context lengths.
pub const MAX_POSITION: u32 = 1 << 31;

/// A configuration as text or as parsed JSON; made by `into()` from either.
#[derive(Debug, Clone, Copy)]
pub enum ConfigJson<'a> {
    /// The file's text.
    Text(&'a str),
    /// JSON that is parsed already.
    Value(&'a Value),
}

impl<'a> From<&'a str> for ConfigJson<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for ConfigJson<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a Value> for ConfigJson<'a> {
    fn from(value: &'a Value) -> Self {
        Self::Value(value)
    }
}

/// Parses text of bounded size and, by `serde_json`'s own limit, of bounded depth.
pub(super) fn parse(text: &str) -> Result<Value> {
    let bytes = text.len() as u64;
    if bytes > MAX_CONFIG_BYTES {
        return Err(Error::ConfigTooLarge { bytes: Some(bytes), bound: MAX_CONFIG_BYTES });
    }
    serde_json::from_str(text).map_err(|error| Error::ConfigSyntax {
        line: error.line(),
        column: error.column(),
        reason: error.to_string().split(" at line ").next().unwrap_or_default().to_owned(),
    })
}

/// Reads a file of at most [`MAX_CONFIG_BYTES`]; never holds more than that in memory.
pub(super) fn read_file(path: &Path) -> Result<String> {
    let failed = |error: std::io::Error| Error::ConfigRead {
        path: path.display().to_string(),
        reason: error.to_string().to_lowercase(),
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length > MAX_CONFIG_BYTES {
        return Err(Error::ConfigTooLarge { bytes: Some(length), bound: MAX_CONFIG_BYTES });
    }
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(Error::ConfigTooLarge { bytes: None, bound: MAX_CONFIG_BYTES });
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::ConfigRead { path: path.display().to_string(), reason: "not utf-8 text".into() })
}

/// What a file says of a field. Absent takes the family's default, null takes none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Given<T> {
    Absent,
    Null,
    Is(T),
}

impl<T> Given<T> {
    /// The value; `default` if absent; `None` if null.
    pub(super) fn or(self, default: Option<T>) -> Option<T> {
        match self {
            Self::Absent => default,
            Self::Null => None,
            Self::Is(value) => Some(value),
        }
    }
}

/// One JSON object of a configuration, read field by field.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The family that the fields are read for.
    pub(super) family: &'a str,
    /// Where the object lies in the file: empty, or a path that ends in a dot.
    prefix: String,
    read: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, family: &'a str, prefix: String) -> Self {
        Self { map, family, prefix, read: RefCell::default() }
    }

    /// A field's full name in the file.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The field as it stands; remembers that the family reads it.
    pub(super) fn get(&self, name: &'static str) -> Given<&'a Value> {
        self.read.borrow_mut().insert(name);
        match self.map.get(name) {
            None => Given::Absent,
            Some(Value::Null) => Given::Null,
            Some(value) => Given::Is(value),
        }
    }

    /// The first of several spellings that is present.
    pub(super) fn any(&self, names: &[&'static str]) -> &'static str {
        let present = names.iter().find(|name| self.map.contains_key(**name));
        present.or(names.first()).copied().unwrap_or("")
    }

    /// Refuses the first field among `telling` that means something and was not read.
    pub(super) fn refuse_unread(&self, telling: &[&'static str]) -> Result<()> {
        let read = self.read.borrow();
        let unread = telling.iter().find(|name| {
            let means = self.map.get(**name).is_some_and(|value| match value {
                Value::Null | Value::Bool(false) => false,
                Value::Array(list) => !list.is_empty(),
                Value::Object(map) => !map.is_empty(),
                Value::Number(number) => number.as_f64() != Some(0.0),
                _ => true,
            });
            means && !read.contains(**name)
        });
        unread.map_or(Ok(()), |name| {
            Err(self.unsupported(name, "the family has no such field, so its attention would be misread"))
        })
    }

    /// Refusal of a value, with its bound and what to do.
    pub(super) fn bad(&self, name: &str, bound: impl Into<String>, remedy: &str) -> Error {
        let value = self.map.get(name).map_or_else(|| "absent".to_owned(), show);
        Error::ConfigField { field: self.path(name), value, bound: bound.into(), remedy: remedy.to_owned() }
    }

    /// Refusal of something that the family could mean but this crate does not do.
    pub(super) fn unsupported(&self, name: &str, reason: &str) -> Error {
        Error::UnsupportedModel {
            family: self.family.to_owned(),
            field: self.path(name),
            value: self.map.get(name).map_or_else(|| "absent".to_owned(), show),
            reason: reason.to_owned(),
            nearest: super::families::nearest_other(self.family),
        }
    }

    /// An integer within `low..=high`.
    pub(super) fn int(&self, name: &'static str, low: u32, high: u32) -> Result<Given<u32>> {
        Ok(match self.get(name) {
            Given::Absent => Given::Absent,
            Given::Null => Given::Null,
            Given::Is(value) => Given::Is(whole(value, low, high).ok_or_else(|| {
                self.bad(name, format!("an integer from {low} to {high}"), "correct the file")
            })?),
        })
    }

    /// A size from 1 to [`MAX_SIZE`]; `default` if absent, refused if null.
    pub(super) fn size(&self, name: &'static str, default: u32) -> Result<u32> {
        self.count(name, 1, MAX_SIZE, default)
    }

    /// An integer within bounds; `default` if absent, refused if null.
    pub(super) fn count(&self, name: &'static str, low: u32, high: u32, default: u32) -> Result<u32> {
        match self.int(name, low, high)? {
            Given::Absent => Ok(default),
            Given::Is(value) => Ok(value),
            Given::Null => Err(self.bad(
                name,
                format!("an integer from {low} to {high}"),
                "give a number, or leave the field out for the family's default",
            )),
        }
    }

    /// A window or chunk: zero, null and the customary -1 all mean none.
    pub(super) fn span(&self, name: &'static str, default: Option<u32>) -> Result<Option<u32>> {
        if let Given::Is(value) = self.get(name)
            && value.as_i64() == Some(-1)
        {
            return Ok(None);
        }
        Ok(self.int(name, 0, MAX_POSITION)?.or(default).filter(|&span| span > 0))
    }

    /// A finite number within `low..=high`.
    pub(super) fn real(&self, name: &'static str, low: f64, high: f64) -> Result<Given<f64>> {
        Ok(match self.get(name) {
            Given::Absent => Given::Absent,
            Given::Null => Given::Null,
            Given::Is(value) => {
                let number = value.as_f64().filter(|x| x.is_finite() && (low..=high).contains(x));
                Given::Is(number.ok_or_else(|| {
                    self.bad(name, format!("a number from {low} to {high}"), "correct the file")
                })?)
            }
        })
    }

    /// A boolean (0 and 1 count); `default` if absent, false if null.
    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool> {
        match self.get(name) {
            Given::Absent => Ok(default),
            Given::Null => Ok(false),
            Given::Is(Value::Bool(value)) => Ok(*value),
            Given::Is(value) => whole(value, 0, u32::MAX)
                .map(|number| number != 0)
                .ok_or_else(|| self.bad(name, "true or false", "correct the file")),
        }
    }

    /// A string, or `None` if absent or null.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<&'a str>> {
        match self.get(name) {
            Given::Is(Value::String(text)) => Ok(Some(text)),
            Given::Is(_) => Err(self.bad(name, "a string", "correct the file")),
            _ => Ok(None),
        }
    }

    /// A list of at most [`MAX_LAYERS`] elements, or `None` if absent, null or empty.
    pub(super) fn list(&self, name: &'static str) -> Result<Option<&'a [Value]>> {
        match self.get(name) {
            Given::Is(Value::Array(list)) if list.len() <= MAX_LAYERS as usize => {
                Ok(Some(list.as_slice()).filter(|list| !list.is_empty()))
            }
            Given::Is(_) => {
                Err(self.bad(name, format!("a list of at most {MAX_LAYERS}"), "correct the file"))
            }
            _ => Ok(None),
        }
    }

    /// A list of integers within bounds.
    pub(super) fn ints(&self, name: &'static str, low: u32, high: u32) -> Result<Option<Vec<u32>>> {
        let Some(list) = self.list(name)? else { return Ok(None) };
        let each = |value: &Value| {
            whole(value, low, high).ok_or_else(|| Error::ConfigField {
                field: self.path(name),
                value: format!("a list with {}", show(value)),
                bound: format!("a list of integers from {low} to {high}"),
                remedy: "correct the file".into(),
            })
        };
        list.iter().map(each).collect::<Result<Vec<_>>>().map(Some)
    }

    /// A list with exactly one element a layer.
    pub(super) fn per_layer<T>(&self, name: &str, list: Vec<T>, n_layers: u32) -> Result<Vec<T>> {
        if list.len() == n_layers as usize {
            return Ok(list);
        }
        let bound = format!("a list of {n_layers} elements, one for each of num_hidden_layers");
        Err(self.bad(name, bound, "correct the list or num_hidden_layers"))
    }

    /// An object inside this one, or `None` if absent or null.
    pub(super) fn object(&self, name: &'static str) -> Result<Option<Fields<'a>>> {
        match self.get(name) {
            Given::Is(Value::Object(map)) => {
                Ok(Some(Fields::new(map, self.family, format!("{}.", self.path(name)))))
            }
            Given::Is(_) => Err(self.bad(name, "an object", "correct the file")),
            _ => Ok(None),
        }
    }

    /// An object inside this one under a key that no family names.
    pub(super) fn entry(&self, key: &str) -> Result<Option<Fields<'a>>> {
        match self.map.get(key) {
            Some(Value::Object(map)) => {
                Ok(Some(Fields::new(map, self.family, format!("{}.", self.path(key)))))
            }
            Some(_) => Err(self.bad(key, "an object", "correct the file")),
            None => Ok(None),
        }
    }

    /// The fields.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.map.iter()
    }
}

/// An integer written as one, or as a float without a fraction.
pub(super) fn whole(value: &Value, low: u32, high: u32) -> Option<u32> {
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..=4_294_967_295.0).contains(x))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within u32 and whole")]
        Some(float as u64)
    })?;
    u32::try_from(number).ok().filter(|n| (low..=high).contains(n))
}

/// A value in a message: scalars shortened, lists and objects only named.
pub(super) fn show(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(map) => format!("an object of {}", map.len()),
        Value::String(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
        other => other.to_string(),
    }
}
