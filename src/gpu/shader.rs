//! From a WGSL file to the text a device compiles: constants set by name, includes pasted, marked loops
//! unrolled.
//!
//! Files stay in the WGSL language. Three comments mean something to the loader:
//!
//! - `// begin constants` … `// end constants`: right-hand sides in between are set by name;
//! - `//!include "common/x.wgsl"` pastes a file; with `as k` its names `x` and `x_…` become `k` and `k_…`,
//!   and the constant `k` picks another file of `common/` with the same functions;
//! - `for (var r = 0u; r < ROWS; r++) { //!unroll` is written out, since arrays whose indices are literals
//!   live in registers on every driver.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::{Error, Result};

macro_rules! shader_files {
    ($($name:literal),* $(,)?) => {
        /// Every file in `shaders/`, by its path there.
        pub(crate) const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $name)))),*];
    };
}
shader_files!(
    "attention_subgroup.wgsl",
    "attention_tiled.wgsl",
    "block_mean.wgsl",
    "cache_append.wgsl",
    "cache_quantise.wgsl",
    "causal_conv1d.wgsl",
    "ceiling_copy.wgsl",
    "ceiling_multiply_add.wgsl",
    "ceiling_read.wgsl",
    "chunk_states.wgsl",
    "common/activation.wgsl",
    "common/attention.wgsl",
    "common/cache_append.wgsl",
    "common/cache_slot.wgsl",
    "common/decay.wgsl",
    "common/delta.wgsl",
    "common/delta_chunk.wgsl",
    "common/delta_params.wgsl",
    "common/indexed.wgsl",
    "common/indexer.wgsl",
    "common/load_bf16.wgsl",
    "common/load_bf16_element.wgsl",
    "common/load_e4m3.wgsl",
    "common/load_f16.wgsl",
    "common/load_f16_element.wgsl",
    "common/load_f16_native.wgsl",
    "common/load_f32.wgsl",
    "common/load_f32_element.wgsl",
    "common/load_fp8.wgsl",
    "common/load_int8.wgsl",
    "common/load_q4_0.wgsl",
    "common/load_q8_0.wgsl",
    "common/mask.wgsl",
    "common/online_softmax.wgsl",
    "common/pack_bf16.wgsl",
    "common/pack_f16.wgsl",
    "common/quantise_fp8.wgsl",
    "common/quantise_int8.wgsl",
    "common/quantise_q4_0.wgsl",
    "common/quantise_q8_0.wgsl",
    "common/sequences.wgsl",
    "common/store_bf16.wgsl",
    "common/store_bf16_pair.wgsl",
    "common/store_f16.wgsl",
    "common/store_f16_pair.wgsl",
    "common/store_f32.wgsl",
    "common/store_f32_element.wgsl",
    "common/top_k.wgsl",
    "common/visible.wgsl",
    "conv_tail.wgsl",
    "delta_chunk_gather.wgsl",
    "delta_chunk_output.wgsl",
    "delta_chunk_scores.wgsl",
    "delta_chunk_solve.wgsl",
    "delta_chunk_state.wgsl",
    "delta_step.wgsl",
    "delta_step_subgroup.wgsl",
    "gated_norm.wgsl",
    "indexed_attention.wgsl",
    "indexed_attention_subgroup.wgsl",
    "indexer.wgsl",
    "indexer_subgroup.wgsl",
    "linear_step.wgsl",
    "merge_partials.wgsl",
    "nsa_blocks.wgsl",
    "nsa_gate.wgsl",
    "nsa_weights.wgsl",
    "pack_words.wgsl",
    "project_heads.wgsl",
    "rope.wgsl",
    "selective_scan.wgsl",
    "top_k_count.wgsl",
    "top_k_gather.wgsl",
    "top_k_pick.wgsl",
);

/// Value of a constant: a number, a switch, or the name of a file in `common/` (or of a type).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Value {
    U32(u32),
    Bool(bool),
    Name(Cow<'static, str>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U32(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Name(v) => f.write_str(v),
        }
    }
}

impl Value {
    fn wgsl(&self) -> String {
        match self {
            Self::U32(v) => format!("{v}u"),
            other => other.to_string(),
        }
    }
}

impl From<u32> for Value {
    fn from(v: u32) -> Self {
        Self::U32(v)
    }
}

impl From<bool> for Value {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}

impl From<&'static str> for Value {
    fn from(v: &'static str) -> Self {
        Self::Name(v.into())
    }
}

/// Constants by name: the pipeline's cache key, and its label.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Constants(BTreeMap<Cow<'static, str>, Value>);

impl Constants {
    /// Sets a constant by its name in the file.
    pub(crate) fn set(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Value>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// These and `more`.
    pub(crate) fn with(mut self, more: Self) -> Self {
        self.0.extend(more.0);
        self
    }

    /// `kernel[A=1 B=true k=load_f16]`
    pub(crate) fn label(&self, kernel: &str) -> String {
        let list: Vec<_> = self.0.iter().map(|(k, v)| format!("{k}={v}")).collect();
        format!("{kernel}[{}]", list.join(" "))
    }
}

/// Text ready for a compiler, with the origin of each line.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Valid WGSL.
    pub(crate) text: String,
    origins: Vec<(usize, usize)>,
}

impl Source {
    /// File in `shaders/` and line in it that line `line` (from 1) of the text stems from.
    pub(crate) fn origin(&self, line: usize) -> (&'static str, usize) {
        let (file, at) = self.origins.get(line.wrapping_sub(1)).copied().unwrap_or((0, 0));
        (FILES[file].0, at + 1)
    }

    /// A compiler's message with its `wgsl:LINE` places named as places of the files.
    pub(crate) fn locate(&self, message: String) -> String {
        let Some((before, after)) = message.split_once("wgsl:") else { return message };
        let digits = after.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let Ok(line) = digits.parse() else { return message };
        let (file, at) = self.origin(line);
        format!("{before}shaders/{file}:{at}{}", &after[digits.len()..])
    }

    /// Bindings in order: whether each is written.
    pub(crate) fn bindings(&self) -> Vec<bool> {
        let mut found: Vec<(u32, bool)> = self
            .text
            .lines()
            .filter_map(|l| {
                let rest = l.trim_start().strip_prefix("@group(0) @binding(")?;
                let (number, rest) = rest.split_once(')')?;
                Some((number.parse().ok()?, rest.contains("read_write")))
            })
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, written)| written).collect()
    }
}

#[derive(Clone)]
struct Line {
    text: String,
    origin: (usize, usize),
}

fn file_index(path: &str) -> Option<usize> {
    FILES.iter().position(|(name, _)| *name == path)
}

fn fault<T>(line: &Line, message: impl Into<String>) -> Result<T> {
    Err(Error::Shader {
        file: FILES[line.origin.0].0.into(),
        line: line.origin.1 + 1,
        message: message.into(),
    })
}

fn lines_of(file: usize) -> Vec<Line> {
    let numbered = FILES[file].1.lines().enumerate();
    numbered.map(|(n, text)| Line { text: text.to_owned(), origin: (file, n) }).collect()
}

/// Text of `shaders/{kernel}.wgsl` with `constants` set.
pub(crate) fn source(kernel: &str, constants: &Constants) -> Result<Source> {
    edited(kernel, constants, None)
}

/// How often `text` stands in a kernel's lines, before loops are written out.
pub(crate) fn occurrences(kernel: &str, text: &str) -> Result<usize> {
    let lines = pasted(kernel, &Constants::default())?;
    Ok(lines.iter().map(|l| l.text.matches(text).count()).sum())
}

/// The same with text replaced within its lines, before loops are written out: how tests plant faults.
/// Kernels without the text stay as they are; one that has it twice is an error.
pub(crate) fn edited(kernel: &str, constants: &Constants, edit: Option<&(String, String)>) -> Result<Source> {
    let mut lines = pasted(kernel, constants)?;
    if let Some((from, to)) = edit {
        let found: usize = lines.iter().map(|l| l.text.matches(from.as_str()).count()).sum();
        if found > 1 {
            return fault(&lines[0], format!("has {from:?} {found} times: an edit must match once"));
        }
        for line in &mut lines {
            line.text = line.text.replace(from, to);
        }
    }
    let lines = unroll(&lines)?;
    let origins = lines.iter().map(|l| l.origin).collect();
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.text);
        text.push('\n');
    }
    Ok(Source { text, origins })
}

/// A kernel's lines with constants set and files pasted.
fn pasted(kernel: &str, constants: &Constants) -> Result<Vec<Line>> {
    let path = format!("{kernel}.wgsl");
    let Some(file) = file_index(&path) else {
        let known: Vec<_> = kernels().collect();
        return Err(Error::Shader {
            file: path,
            line: 1,
            message: format!("no such kernel; there are {}", known.join(", ")),
        });
    };
    let mut lines = lines_of(file);
    let known = settable(&lines);
    let mut unused = constants.clone();
    set_constants(&mut lines, &mut unused)?;
    let mut lines = paste_includes(lines, &mut unused)?;
    if let Some((name, _)) = unused.0.first_key_value() {
        return fault(&lines[0], format!("has no constant named {name}; it has {}", known.join(", ")));
    }
    hoist_enables(&mut lines);
    Ok(lines)
}

/// Stems of the files that hold an entry point.
pub(crate) fn kernels() -> impl Iterator<Item = &'static str> {
    FILES.iter().filter_map(|(name, _)| name.strip_suffix(".wgsl").filter(|stem| !stem.contains('/')))
}

/// Names that a file's constants and renamed includes go by.
fn settable(lines: &[Line]) -> Vec<String> {
    let text = |l: &Line| l.text.trim().to_owned();
    let block = lines.iter().map(text).skip_while(|l| !l.starts_with("// begin constants"));
    let constants = block.take_while(|l| !l.starts_with("// end constants")).filter_map(|l| {
        Some(l.split_once('=')?.0.split_whitespace().nth(1)?.trim_end_matches(':').to_owned())
    });
    let includes = lines.iter().map(text).filter(|l| l.starts_with("//!include "));
    let renamed = includes.filter_map(|l| Some(l.rsplit_once(" as ")?.1.to_owned()));
    constants.chain(renamed).collect()
}

fn set_constants(lines: &mut [Line], unused: &mut Constants) -> Result<()> {
    let mut inside = false;
    for line in lines {
        let text = line.text.trim();
        if text.starts_with("// begin constants") {
            inside = true;
        } else if text.starts_with("// end constants") {
            return Ok(());
        } else if inside {
            let Some((left, right)) = line.text.split_once('=') else { continue };
            let name = left.split_whitespace().nth(1).unwrap_or_default().trim_end_matches(':');
            let Some(value) = unused.0.remove(name) else { continue };
            let Some((_, comment)) = right.split_once(';') else {
                return fault(line, "a constant ends with ';' on its own line");
            };
            line.text = format!("{}= {};{comment}", left, value.wgsl());
        }
    }
    Ok(())
}

fn paste_includes(lines: Vec<Line>, unused: &mut Constants) -> Result<Vec<Line>> {
    let mut out = Vec::new();
    // a stack, so that pasted files may include others
    let mut todo: Vec<Line> = lines.into_iter().rev().collect();
    while let Some(line) = todo.pop() {
        let Some(rest) = line.text.trim().strip_prefix("//!include ") else {
            out.push(line);
            continue;
        };
        let mut parts = rest.splitn(3, '"');
        let (_, Some(path), Some(tail)) = (parts.next(), parts.next(), parts.next()) else {
            return fault(&line, "write //!include \"common/file.wgsl\"");
        };
        let prefix = tail.trim().strip_prefix("as ").and_then(|t| t.split_whitespace().next());
        let chosen = match prefix.and_then(|p| unused.0.remove(p)) {
            Some(value) => format!("common/{value}.wgsl"),
            None => path.to_owned(),
        };
        let Some(file) = file_index(&chosen) else {
            return fault(&line, format!("there is no shaders/{chosen}"));
        };
        let pasted = lines_of(file).into_iter().map(|mut l| {
            if let Some(prefix) = prefix {
                l.text = replace_words(&l.text, |w| match w.strip_prefix('x') {
                    Some("") => Some(prefix.to_owned()),
                    Some(rest) if rest.starts_with('_') => Some(format!("{prefix}{rest}")),
                    _ => None,
                });
            }
            l
        });
        todo.extend(pasted.rev());
    }
    Ok(out)
}

/// `enable` directives must come first in a module, once each.
fn hoist_enables(lines: &mut Vec<Line>) {
    let mut enables: Vec<Line> = Vec::new();
    lines.retain(|l| {
        let is_enable = l.text.starts_with("enable ");
        if is_enable && !enables.iter().any(|e| e.text == l.text) {
            enables.push(l.clone());
        }
        !is_enable
    });
    lines.splice(0..0, enables);
}

/// Replaces identifiers; a member access (`a.x`) is no identifier.
fn replace_words(text: &str, replace: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_dot = false;
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            let word = &rest[..end];
            match replace(word).filter(|_| !after_dot && !first.is_ascii_digit()) {
                Some(new) => out.push_str(&new),
                None => out.push_str(word),
            }
            after_dot = false;
            rest = &rest[end..];
        } else {
            after_dot = first == '.';
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// Writes marked loops out, innermost first: each line is copied once for each loop around it.
fn unroll(lines: &[Line]) -> Result<Vec<Line>> {
    let mut out = Vec::new();
    write_out(lines, lines, &mut out)?;
    Ok(out)
}

fn write_out(module: &[Line], lines: &[Line], out: &mut Vec<Line>) -> Result<()> {
    let mut rest = lines;
    while let Some((header, after)) = rest.split_first() {
        if !header.text.trim_end().ends_with("//!unroll") {
            out.push(header.clone());
            rest = after;
            continue;
        }
        let Some((variable, bound)) = loop_header(&header.text) else {
            return fault(header, "unrolled loops read `for (var i = 0u; i < COUNT; i++) { //!unroll`");
        };
        let count = match (Constant { lines: module, depth: 0 }).evaluate(bound) {
            Ok(count) => count,
            Err(message) => return fault(header, format!("cannot count the loop: {message}")),
        };
        let mut depth = 0i32;
        let end = rest.iter().position(|l| {
            let code = l.text.split("//").next().unwrap_or_default();
            depth += code.matches('{').count() as i32 - code.matches('}').count() as i32;
            depth == 0
        });
        let Some(end) = end else {
            return fault(header, "the loop has no closing brace");
        };
        let mut body = Vec::new();
        write_out(module, &rest[1..end], &mut body)?;
        for i in 0..count {
            out.push(Line { text: "{".into(), origin: header.origin });
            out.extend(body.iter().map(|l| {
                if !l.text.contains(variable) {
                    return l.clone();
                }
                let text = replace_words(&l.text, |w| (w == variable).then(|| format!("{i}u")));
                Line { text, origin: l.origin }
            }));
            out.push(Line { text: "}".into(), origin: rest[end].origin });
        }
        rest = &rest[end + 1..];
    }
    Ok(())
}

/// Variable and bound of `for (var i = 0u; i < BOUND; i++) {`
fn loop_header(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix("for (var ")?;
    let (variable, rest) = rest.split_once(" = 0u; ")?;
    let rest = rest.strip_prefix(variable)?.strip_prefix(" < ")?;
    let (bound, rest) = rest.split_once("; ")?;
    rest.strip_prefix(variable)?.starts_with("++) {").then_some((variable, bound))
}

/// Evaluates unsigned constant expressions: numbers, names, `+ - * / %` and parentheses.
struct Constant<'a> {
    lines: &'a [Line],
    depth: u32,
}

impl Constant<'_> {
    fn evaluate(&self, text: &str) -> Result<u32, String> {
        let mut rest = text.trim();
        let value = self.sum(&mut rest)?;
        if rest.is_empty() { Ok(value) } else { Err(format!("{rest:?} is left of {text:?}")) }
    }

    fn sum(&self, rest: &mut &str) -> Result<u32, String> {
        let mut value = self.product(rest)?;
        while let Some(operator @ ('+' | '-')) = rest.chars().next() {
            *rest = rest[1..].trim_start();
            let right = self.product(rest)?;
            let result = if operator == '+' { value.checked_add(right) } else { value.checked_sub(right) };
            value = result.ok_or_else(|| format!("{value} {operator} {right} is out of range"))?;
        }
        Ok(value)
    }

    fn product(&self, rest: &mut &str) -> Result<u32, String> {
        let mut value = self.atom(rest)?;
        while let Some(operator @ ('*' | '/' | '%')) = rest.chars().next() {
            *rest = rest[1..].trim_start();
            let right = self.atom(rest)?;
            let result = match operator {
                '*' => value.checked_mul(right),
                '/' => value.checked_div(right),
                _ => value.checked_rem(right),
            };
            value = result.ok_or_else(|| format!("{value} {operator} {right} is out of range"))?;
        }
        Ok(value)
    }

    fn atom(&self, rest: &mut &str) -> Result<u32, String> {
        if let Some(inner) = rest.strip_prefix('(') {
            *rest = inner.trim_start();
            let value = self.sum(rest)?;
            *rest = rest.strip_prefix(')').ok_or("a parenthesis is not closed")?.trim_start();
            return Ok(value);
        }
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        *rest = after.trim_start();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.trim_end_matches('u').parse().map_err(|_| format!("{word:?} is no number"));
        }
        if self.depth > 16 {
            return Err(format!("{word:?} refers to itself"));
        }
        let definition = format!("const {word}: u32 =");
        let line = self.lines.iter().find_map(|l| l.text.trim_start().strip_prefix(definition.as_str()));
        let (expression, _) =
            line.and_then(|l| l.split_once(';')).ok_or_else(|| format!("{word:?} is no u32 constant"))?;
        Constant { lines: self.lines, depth: self.depth + 1 }.evaluate(expression)
    }
}
