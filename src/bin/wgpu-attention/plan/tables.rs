//! The command's tables, as text.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, Table, presets};
use wgpu_attention::model::{AdapterFit, Fit, FitVerdict};

use super::{Model, chart};

/// Token counts at which growth is shown: 4K to 1M.
pub(super) const GROWTH: [u64; 9] =
    [1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20];

/// Digits in groups of three.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit that leaves a number of at least one.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    // sizes of caches are compared in MiB, so the next unit waits for 10,000 of it
    let (mut value, mut unit) = (bytes as f64, 0);
    while unit < UNITS.len() - 1 && value >= if unit == 2 { 1e4 } else { 1024.0 } {
        value /= 1024.0;
        unit += 1;
    }
    let rounded = (value * 100.0).round() / 100.0;
    let whole = rounded.trunc();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "under 1e6 by the loop")]
    let number = grouped(whole as u64);
    let fraction = format!("{:.2}", rounded - whole);
    let fraction = fraction.trim_start_matches('0').trim_end_matches('0').trim_end_matches('.');
    format!("{number}{fraction} {}", UNITS[unit])
}

/// A token count in K or M where that is exact.
pub(super) fn count(tokens: u64) -> String {
    match tokens {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => grouped(n),
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(header.iter().enumerate().map(|(i, name)| align(i, name)));
    table
}

/// The first two columns are text, the others numbers.
fn align(column: usize, text: &str) -> Cell {
    let alignment = if column < 2 { CellAlignment::Left } else { CellAlignment::Right };
    Cell::new(text).set_alignment(alignment)
}

fn row(table: &mut Table, cells: &[String]) {
    table.add_row(cells.iter().enumerate().map(|(i, cell)| align(i, cell)));
}

/// Indices as ranges: 0-4, 6-10, 12, and how many more.
fn ranges(indices: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let text = |&(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let shown: Vec<String> = ranges.iter().take(4).map(text).collect();
    match ranges.last() {
        Some(last) if ranges.len() == 5 => format!("{}, {}", shown.join(", "), text(last)),
        Some(last) if ranges.len() > 5 => format!("{}, .., {}", shown.join(", "), text(last)),
        _ => shown.join(", "),
    }
}

/// Layers that do the same, in the order of their first.
fn groups(model: &Model) -> Result<String, Box<dyn Error>> {
    let mut groups: BTreeMap<String, (usize, Vec<u32>, u64, u64, u64)> = BTreeMap::new();
    let planned = model.plan.layers.iter().chain(&model.plan.prediction_layers);
    for (place, (layer, planned)) in model.cache.layers.iter().zip(planned).enumerate() {
        let key = planned.design.describe();
        let group = groups.entry(key).or_insert_with(|| (place, Vec::new(), 0, 0, 0));
        let now = layer.bytes(model.tokens, 1)?;
        let next = layer.bytes(model.tokens.saturating_add(1), 1)?;
        group.1.push(layer.index);
        group.2 += next - now;
        group.3 += layer.bytes(0, 1)?;
        group.4 += layer.bytes(model.tokens, model.batch)?;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (place, ..))| *place);
    let at = format!("bytes at {}", count(model.tokens));
    let mut table = table(&["design", "layers", "n", "next token", "fixed", &at, ""]);
    for (design, (_, layers, next, fixed, bytes)) in groups {
        let cells = [
            design,
            ranges(&layers),
            layers.len().to_string(),
            grouped(next),
            grouped(fixed),
            grouped(bytes),
            size(bytes),
        ];
        row(&mut table, &cells);
    }
    Ok(table.to_string())
}

/// One model: layers, sums, growth, and what fits.
pub(super) fn one(model: &Model, adapters: &[AdapterFit]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    let Model { name, plan, options, cache, tokens, batch, .. } = model;
    writeln!(
        text,
        "{name}: {}, {} layers, keys and values in {}, {} tokens, batch {batch}",
        plan.family,
        plan.layers.len(),
        options.kv,
        grouped(*tokens)
    )?;
    if let Some(trained) = plan.max_position.map(u64::from).filter(|trained| trained < tokens) {
        writeln!(text, "note: the model was made for {} tokens", grouped(trained))?;
    }
    writeln!(text, "\n{}\n", groups(model)?)?;
    let (first, ever) = (cache.bytes_per_token_at(0)?, cache.bytes_per_token());
    let filling =
        if first > ever { format!(" ({} until the windows fill)", grouped(first)) } else { String::new() };
    let total = model.bytes_at(*tokens)?;
    let all_full = plan.all_full_bytes(options, *tokens, *batch)?;
    let plain = plan.plain_bytes(options, *tokens, *batch)?;
    let line = |text: &mut String, label: &str, bytes: u64, extra: &str| {
        writeln!(text, "{label:<34}{:>20}  {}{extra}", grouped(bytes), size(bytes))
    };
    line(&mut text, "bytes per token", ever, &filling)?;
    line(&mut text, "fixed bytes of a sequence", cache.fixed_bytes()?, "")?;
    line(&mut text, "total", total, "")?;
    line(&mut text, "without windows and chunks", all_full, "")?;
    line(&mut text, "every query head stored plainly", plain, &saved(plain, total))?;
    if let Some((runtime, reservation)) = &model.reservation {
        writeln!(text, "\n{} reserves", runtime.name())?;
        let mut table = table(&["design", "", "layers", "tokens", "bytes", ""]);
        for part in &reservation.parts {
            let cells = [
                part.design.to_owned(),
                String::new(),
                part.layers.to_string(),
                if part.tokens == 0 { "state".into() } else { grouped(part.tokens) },
                grouped(part.bytes),
                size(part.bytes),
            ];
            row(&mut table, &cells);
        }
        writeln!(text, "{table}")?;
        line(&mut text, "reserved", reservation.total_bytes, "")?;
    }
    writeln!(text, "\n{}", growth(std::slice::from_ref(model))?)?;
    if !adapters.is_empty() {
        writeln!(text, "\n{}", fits(&cache.fit(adapters, *tokens, *batch)?))?;
    }
    Ok(text)
}

fn saved(plain: u64, total: u64) -> String {
    if total == 0 || plain <= total {
        return String::new();
    }
    format!(", {:.1} times as much", plain as f64 / total as f64)
}

/// How the models grow from 4K to 1M tokens, with bars to scale for one model.
fn growth(models: &[Model]) -> Result<String, Box<dyn Error>> {
    let mut header = vec!["tokens", ""];
    header.extend(models.iter().map(|model| model.name.as_str()));
    let mut table = table(&header);
    for tokens in GROWTH {
        let mut cells = vec![count(tokens), String::new()];
        for model in models {
            cells.push(size(model.bytes_at(tokens)?));
        }
        if let [model] = models {
            cells[1] = chart::bar(model.bytes_at(tokens)?, model.bytes_at(GROWTH[8])?);
        }
        row(&mut table, &cells);
    }
    Ok(table.to_string())
}

/// Models side by side: sizes, then bars by design, then growth.
pub(super) fn compared(models: &[Model]) -> Result<String, Box<dyn Error>> {
    let Some(first) = models.first() else { return Ok(String::new()) };
    let mut text = format!("{} tokens, batch {}\n\n", grouped(first.tokens), first.batch);
    let mut table = table(&["model", "designs", "kv", "bytes per token", "fixed", "total", "stored plainly"]);
    for model in models {
        let plain = model.plan.plain_bytes(&model.options, model.tokens, model.batch)?;
        let cells = [
            model.name.clone(),
            chart::designs(model)?
                .iter()
                .map(|(design, n, _)| format!("{n} {design}"))
                .collect::<Vec<_>>()
                .join(", "),
            model.options.kv.to_string(),
            grouped(model.cache.bytes_per_token()),
            size(model.cache.fixed_bytes()?),
            size(model.bytes_at(model.tokens)?),
            size(plain),
        ];
        row(&mut table, &cells);
    }
    writeln!(text, "{table}\n\n{}\n{}", chart::terminal(models)?, growth(models)?)?;
    Ok(text)
}

/// Whether the cache fits each adapter.
fn fits(fits: &[Fit]) -> String {
    let mut table = table(&["adapter", "fit", "total", "largest part", "longest context"]);
    for fit in fits {
        let verdict = match fit.verdict {
            FitVerdict::Fits => "fits".to_owned(),
            FitVerdict::FitsSplit { parts } => format!("fits, split in {parts}"),
            FitVerdict::TooLarge { over_bytes } => format!("{} too large", size(over_bytes)),
            _ => "unknown".to_owned(),
        };
        let cells = [
            fit.adapter.clone(),
            verdict,
            size(fit.total_bytes),
            format!("{} (layer {})", size(fit.largest_bytes), fit.largest_layer),
            fit.max_tokens.map_or_else(|| "unknown".to_owned(), grouped),
        ];
        row(&mut table, &cells);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(size(792_723_456), "756 MiB");
        assert_eq!(size(52_690_944), "50.25 MiB");
        assert_eq!(size(4_352 << 20), "4,352 MiB");
        assert_eq!(size(1023), "1,023 B");
        assert_eq!(count(32_768), "32K");
        assert_eq!(count(1 << 20), "1M");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(ranges(&[0, 2, 4, 6, 8, 10]), "0, 2, 4, 6, .., 10");
    }

    #[test]
    fn fits_name_the_adapter_and_the_verdict() {
        let fit = |verdict| Fit {
            adapter: "software".into(),
            total_bytes: 16 << 30,
            largest_bytes: 256 << 20,
            largest_layer: 0,
            verdict,
            max_tokens: Some(16_384),
        };
        let text = fits(&[
            fit(FitVerdict::FitsSplit { parts: 2 }),
            fit(FitVerdict::TooLarge { over_bytes: 1 << 20 }),
        ]);
        for word in ["software", "split in 2", "1 MiB too large", "256 MiB (layer 0)", "16,384"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}
