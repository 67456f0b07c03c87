//! The roofline picture: operations to a byte across, operations in a second upwards, both logarithmic.

use std::error::Error;
use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use wgpu_attention::Gpu;
use wgpu_attention::measure::Ceilings;

use super::Measured;

const SIZE: (u32, u32) = (1180, 620);
/// Width of the plot; the list of cases takes the rest.
const PLOT: u32 = 760;
const MEMORY: RGBColor = RGBColor(0, 114, 178);
const COMPUTE: RGBColor = RGBColor(213, 94, 0);
const GREY: RGBColor = RGBColor(90, 90, 90);

/// A clock's twelve directions in hundredths, from the right.
const DIRECTIONS: [(i32, i32); 12] = [
    (100, 0),
    (87, 50),
    (50, 87),
    (0, 100),
    (-50, 87),
    (-87, 50),
    (-100, 0),
    (-87, -50),
    (-50, -87),
    (0, -100),
    (50, -87),
    (87, -50),
];

fn colour(case: &Measured) -> RGBColor {
    if case.memory_bound { MEMORY } else { COMPUTE }
}

/// Powers of ten around values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(0.0, f64::max);
    10f64.powf((low * 0.8).log10().floor())..10f64.powf((high * 1.6).log10().ceil())
}

fn plain(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
}

/// The picture as SVG.
pub(super) fn roofline(gpu: &Gpu, ceilings: &Ceilings, cases: &[Measured]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let title = format!("{}, {}", gpu.name(), gpu.driver());
        root.draw(&Text::new(title, (24, 18), ("sans-serif", 18).into_font().color(&BLACK)))?;
        let (_, below) = root.split_vertically(44);
        let (left, right) = below.split_horizontally(PLOT);
        plot(&left, ceilings, cases)?;
        list(&right, cases)?;
        root.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn plot(area: &Area<'_>, ceilings: &Ceilings, cases: &[Measured]) -> Result<(), Box<dyn Error>> {
    let intensity = |case: &Measured| case.flops as f64 / case.bytes as f64;
    let peak = ceilings.multiply_add.per_second / 1e9;
    let slope = ceilings.read.per_second / 1e9;
    let ridge = peak / slope;
    let across = decades(cases.iter().map(intensity).chain([ridge]));
    let rates = cases.iter().map(|case| case.flops_per_second() / 1e9);
    let upwards = decades(rates.chain([peak]));
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(across.clone().log_scale(), upwards.clone().log_scale())?;
    chart
        .configure_mesh()
        .bold_line_style(RGBColor(215, 215, 215))
        .light_line_style(RGBColor(243, 243, 243))
        .label_style(("sans-serif", 14))
        .x_desc("operations to a byte that must move")
        .y_desc("GFLOP/s")
        .x_label_formatter(&|value| plain(*value))
        .y_label_formatter(&|value| plain(*value))
        .draw()?;
    // the memory line enters at the left or at the bottom edge
    let start = across.start.max(upwards.start / slope);
    let memory = [(start, start * slope), (ridge, peak)];
    let lines = [(memory, MEMORY), ([(ridge, peak), (across.end, peak)], COMPUTE)];
    chart.draw_series(lines.map(|(ends, colour)| PathElement::new(ends.to_vec(), colour.stroke_width(2))))?;
    // places in the chart count from the picture's corner, drawing on the area from the area's
    let corner = area.get_base_pixel();
    let at = |x: f64, y: f64| {
        let place = chart.backend_coord(&(x, y));
        (place.0 - corner.0, place.1 - corner.1)
    };
    let mut taken: Vec<[i32; 4]> = Vec::new();
    let (right, top) = at(across.end, peak);
    let compute = format!("{peak:.0} GFLOP/s multiply-add");
    label(area, &compute, (right - 4, top - 18), HPos::Right, COMPUTE, &mut taken)?;
    let (x, y) = at((start * ridge).sqrt(), (start * ridge).sqrt() * slope);
    label(area, &format!("{slope:.1} GB/s read"), (x - 10, y - 14), HPos::Right, MEMORY, &mut taken)?;
    let places: Vec<_> =
        cases.iter().map(|case| at(intensity(case), case.flops_per_second() / 1e9)).collect();
    taken.extend(places.iter().map(|&(x, y)| [x - 5, y - 5, x + 5, y + 5]));
    for (case, &(x, y)) in cases.iter().zip(&places) {
        area.draw(&Circle::new((x, y), 4, colour(case).filled()))?;
    }
    for (number, &(x, y)) in (1..).zip(&places) {
        // the nearest free place on growing circles around the point
        let mut spots = [16, 28, 42, 58, 76].into_iter().flat_map(|radius: i32| {
            DIRECTIONS.map(|(dx, dy)| (x + dx * radius / 100, y - dy * radius / 100))
        });
        let free = |&(x, y): &(i32, i32)| {
            let own = [x - 9, y - 8, x + 9, y + 8];
            taken.iter().all(|t| own[0] >= t[2] || own[2] <= t[0] || own[1] >= t[3] || own[3] <= t[1])
        };
        let spot = spots.find(free).unwrap_or((x + 12, y));
        let far = (spot.0 - x).abs().max((spot.1 - y).abs()) > 18;
        if far {
            area.draw(&PathElement::new([(x, y), spot], GREY.mix(0.5)))?;
        }
        label(area, &number.to_string(), (spot.0, spot.1 - 7), HPos::Center, BLACK, &mut taken)?;
    }
    Ok(())
}

/// Draws a label whose upper edge lies at `at`, and notes the place it takes.
fn label(
    area: &Area<'_>,
    text: &str,
    (x, y): (i32, i32),
    anchor: HPos,
    colour: RGBColor,
    taken: &mut Vec<[i32; 4]>,
) -> Result<(), Box<dyn Error>> {
    let style = ("sans-serif", 14).into_font().color(&colour).pos(Pos::new(anchor, VPos::Top));
    area.draw(&Text::new(text.to_owned(), (x, y), style))?;
    let width = 8 * i32::try_from(text.chars().count()).unwrap_or(0);
    let left = match anchor {
        HPos::Left => x,
        HPos::Center => x - width / 2,
        HPos::Right => x - width,
    };
    taken.push([left, y, left + width, y + 15]);
    Ok(())
}

/// The numbered cases with the shares that they reach.
fn list(area: &Area<'_>, cases: &[Measured]) -> Result<(), Box<dyn Error>> {
    let small = |colour: &RGBColor| ("sans-serif", 14).into_font().color(colour);
    let right = |colour: &RGBColor| small(colour).pos(Pos::new(HPos::Right, VPos::Top));
    let heading = small(&GREY);
    area.draw(&Text::new("case", (30, 16), heading))?;
    area.draw(&Text::new("share of the bound", (400, 16), right(&GREY)))?;
    for (number, case) in (1..).zip(cases) {
        let y = 16 + 24 * number;
        area.draw(&Text::new(number.to_string(), (22, y), right(&BLACK)))?;
        area.draw(&Text::new(case.name.clone(), (30, y), small(&BLACK)))?;
        let share = format!("{:.0} % {}", case.share * 1e2, case.bound());
        area.draw(&Text::new(share, (400, y), right(&colour(case))))?;
    }
    Ok(())
}
