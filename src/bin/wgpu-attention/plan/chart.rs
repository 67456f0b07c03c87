//! The command's charts: bars in the terminal, lines and stacked bars as SVG.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;

use plotters::coord::CoordTranslate;
use plotters::prelude::*;

use super::Model;
use super::tables::{GROWTH, count, size};

/// Widest bar in the terminal.
const BAR: usize = 40;

/// Colours that stay apart for colour-blind eyes (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(240, 228, 66),
];

/// Marks of designs in the terminal, darkest first.
const MARKS: [char; 8] = ['█', '▒', '░', '▓', '#', '+', '=', '.'];

/// A bar whose length is to [`BAR`] as `value` is to `most`.
pub(super) fn bar(value: u64, most: u64) -> String {
    "█".repeat(length(value, most))
}

/// Cells of a bar, at least one for what is not nothing.
fn length(value: u64, most: u64) -> usize {
    let cells = u128::from(value) * BAR as u128 / u128::from(most.max(1));
    usize::try_from(cells).unwrap_or(BAR).min(BAR).max(usize::from(value > 0))
}

/// A design, its layers, its bytes.
pub(super) type Share = (&'static str, usize, u64);

/// Layers and bytes of each design, in the order of their first layer.
pub(super) fn designs(model: &Model) -> Result<Vec<Share>, Box<dyn Error>> {
    let mut designs: Vec<Share> = Vec::new();
    for layer in &model.cache.layers {
        let bytes = layer.bytes(model.tokens, model.batch)?;
        match designs.iter_mut().find(|(design, ..)| *design == layer.design) {
            Some((_, layers, sum)) => {
                *layers += 1;
                *sum += bytes;
            }
            None => designs.push((layer.design, 1, bytes)),
        }
    }
    Ok(designs)
}

/// Every design of the models, numbered in the order of first use.
fn palette(models: &[Model]) -> Result<BTreeMap<&'static str, usize>, Box<dyn Error>> {
    let mut palette = BTreeMap::new();
    for model in models {
        for (design, _, bytes) in designs(model)? {
            let next = palette.len();
            if bytes > 0 {
                palette.entry(design).or_insert(next);
            }
        }
    }
    Ok(palette)
}

/// One bar a model, its designs side by side, all on one scale.
pub(super) fn terminal(models: &[Model]) -> Result<String, Box<dyn Error>> {
    let palette = palette(models)?;
    let totals = models.iter().map(|model| model.bytes_at(model.tokens)).collect::<Result<Vec<_>, _>>()?;
    let most = totals.iter().copied().max().unwrap_or(0);
    let width = models.iter().map(|model| model.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (model, total) in models.iter().zip(totals) {
        let mut cells = String::new();
        for (design, _, bytes) in designs(model)?.into_iter().filter(|(.., bytes)| *bytes > 0) {
            let mark = MARKS[palette.get(design).copied().unwrap_or(0) % MARKS.len()];
            cells.extend(std::iter::repeat_n(mark, length(bytes, most)));
        }
        writeln!(text, "{:<width$}  {cells} {}", model.name, size(total))?;
    }
    let mut legend: Vec<_> = palette.into_iter().collect();
    legend.sort_by_key(|(_, place)| *place);
    let legend = legend.iter().map(|(design, place)| format!("{} {design}", MARKS[place % MARKS.len()]));
    writeln!(text, "{:<width$}  {}", "", legend.collect::<Vec<_>>().join("   "))?;
    Ok(text)
}

/// Growth of every model; for one, also without windows and stored plainly; for several, their parts beside.
pub(super) fn svg(models: &[Model]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (1120, 520)).into_drawing_area();
        root.fill(&WHITE)?;
        let lines = lines(models)?;
        if models.len() > 1 {
            let (left, right) = root.split_horizontally(640);
            draw_growth(&left, &lines)?;
            draw_parts(&right, models)?;
        } else {
            draw_growth(&root, &lines)?;
        }
        root.present()?;
    }
    Ok(svg)
}

type Line = (String, Vec<u64>);

fn lines(models: &[Model]) -> Result<Vec<Line>, Box<dyn Error>> {
    let mut lines = Vec::new();
    for model in models {
        let mut line = Vec::new();
        for tokens in GROWTH {
            line.push(model.bytes_at(tokens)?);
        }
        lines.push((model.name.clone(), line));
    }
    if let [model] = models {
        let at = |bytes: &dyn Fn(u64) -> wgpu_attention::Result<u64>| {
            GROWTH.iter().map(|&tokens| bytes(tokens)).collect::<Result<Vec<_>, _>>()
        };
        let (plan, options, batch) = (&model.plan, &model.options, model.batch);
        lines.push(("without windows".into(), at(&|tokens| plan.all_full_bytes(options, tokens, batch))?));
        lines.push(("every head plainly".into(), at(&|tokens| plan.plain_bytes(options, tokens, batch))?));
    }
    Ok(lines)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Bytes over tokens, both axes in powers of two.
fn draw_growth(area: &Area<'_>, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let log = |bytes: u64| (bytes.max(1) as f64).log2();
    let all = || lines.iter().flat_map(|(_, line)| line).map(|&bytes| log(bytes));
    let low = all().fold(f64::INFINITY, f64::min).floor();
    let high = all().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
    let mut chart = ChartBuilder::on(area)
        .caption("Cache bytes by tokens", ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(12f64..20f64, low..high)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ticks are within 0..64")]
    let power = |x: f64| 1u64 << (x.round().clamp(0.0, 63.0) as u32);
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(9)
        .y_labels(12)
        .x_desc("tokens")
        .x_label_formatter(&|x| count(power(*x)))
        .y_label_formatter(&|y| if y.fract() == 0.0 { size(power(*y)) } else { String::new() })
        .draw()?;
    for (i, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let points: Vec<(f64, f64)> =
            (12u32..).zip(line).map(|(x, &bytes)| (f64::from(x), log(bytes))).collect();
        chart
            .draw_series(std::iter::once(PathElement::new(points.clone(), colour.stroke_width(2))))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    legend(chart)
}

fn legend<'a, C: CoordTranslate + 'a>(
    mut chart: ChartContext<'a, SVGBackend<'a>, C>,
) -> Result<(), Box<dyn Error>> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// One bar a model, its designs stacked.
fn draw_parts(area: &Area<'_>, models: &[Model]) -> Result<(), Box<dyn Error>> {
    const MIB: f64 = 1024.0 * 1024.0;
    let palette = palette(models)?;
    let mut most = 1f64;
    for model in models {
        most = most.max(model.bytes_at(model.tokens)? as f64 / MIB);
    }
    let tokens = models.first().map_or(0, |model| model.tokens);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("MiB at {} tokens", count(tokens)), ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0f64..models.len() as f64, 0f64..most * 1.25)?;
    let name = |x: &f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index into models")]
        let place = x.floor() as usize;
        let label = if (x.fract() - 0.5).abs() < 1e-6 { models.get(place) } else { None };
        label.map_or_else(String::new, |model| model.name.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(2 * models.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    let mut segments = Vec::new();
    for (x, model) in models.iter().enumerate() {
        let (left, right) = (x as f64 + 0.2, x as f64 + 0.8);
        let mut low = 0.0;
        for (design, _, bytes) in designs(model)?.into_iter().filter(|(.., bytes)| *bytes > 0) {
            let high = low + bytes as f64 / MIB;
            segments.push((design, [(left, low), (right, high)]));
            low = high;
        }
    }
    for (design, place) in palette {
        let colour = COLOURS[place % COLOURS.len()];
        let own = segments.iter().filter(|(name, _)| *name == design);
        chart
            .draw_series(own.map(|(_, corners)| Rectangle::new(*corners, colour.filled())))?
            .label(design)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    legend(chart)
}
