//! Plots of the figures, as SVG files.

use std::ops::Range;
use std::path::Path;

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::combinators::{IntoLogRange, LogCoord};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::element::{DynElement, IntoDynElement};
use plotters::prelude::*;

use super::Result;

const SIZE: (u32, u32) = (1080, 560);
/// The width right of the chart, for the names of the series.
const LEGEND: u32 = 280;
const FONT: &str = "sans-serif";
/// The palette of Okabe and Ito, which colour-blind readers can tell apart, and a grey.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(128, 128, 128),
];

/// Axis of a plot.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) log: bool,
}

pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One line with point markers per series. What a logarithmic axis cannot show (zero, NaN) is left out.
pub(crate) fn lines(file: &Path, title: &str, x: Axis, y: Axis, series: &[Series]) -> Result<()> {
    let shown = |&(a, b): &(f64, f64)| x.shows(a) && y.shows(b);
    let points = || series.iter().flat_map(|series| series.points.iter().copied().filter(shown));
    let (xs, ys) = (x.scale(points().map(|point| point.0)), y.scale(points().map(|point| point.1)));
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let mut chart = frame(&root, title, series.iter().map(|series| series.name.as_str()), xs, ys)?;
    chart.configure_mesh().x_desc(x.label).y_desc(y.label).x_label_formatter(&number).draw()?;
    for (n, series) in series.iter().enumerate() {
        let points: Vec<_> = series.points.iter().copied().filter(shown).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour(n).stroke_width(2)))?;
        chart.draw_series(points.into_iter().map(|point| marker(n, point)))?;
    }
    Ok(root.present()?)
}

/// Groups of bars: one group per label, one bar per series (each with one value per label; NaN = absent).
pub(crate) fn bars(
    file: &Path,
    title: &str,
    y: Axis,
    labels: &[String],
    series: &[(String, Vec<f64>)],
) -> Result<()> {
    let shown = series.iter().flat_map(|(_, values)| values.iter().copied().filter(|value| y.shows(*value)));
    let ys = y.scale(shown);
    let floor = ys.range().start;
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    let names = series.iter().map(|(name, _)| name.as_str());
    let mut chart = frame(&root, title, names, Scale::Groups(labels.len()), ys)?;
    let label = |place: &f64| labels.get(*place as usize).cloned().unwrap_or_default();
    chart.configure_mesh().disable_x_mesh().y_desc(y.label).x_label_formatter(&label).draw()?;
    let width = 0.8 / series.len() as f64;
    for (n, (_, values)) in series.iter().enumerate() {
        let values = values.iter().enumerate().filter(|(_, value)| y.shows(**value));
        chart.draw_series(values.map(|(group, value)| {
            let left = group as f64 + 0.1 + n as f64 * width;
            Rectangle::new([(left, floor), (left + 0.9 * width, *value)], colour(n).filled())
        }))?;
    }
    Ok(root.present()?)
}

impl Axis {
    fn shows(self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// Room for all values: from zero, or between them on a logarithmic axis, and a little more.
    fn scale(self, values: impl Iterator<Item = f64>) -> Scale {
        let (min, max) = values.fold((f64::INFINITY, 0.0_f64), |(min, max), v| (min.min(v), max.max(v)));
        if max <= 0.0 {
            return Scale::Linear((0.0..1.0).into());
        }
        if self.log {
            Scale::Log((min / 1.5..max * 1.5).log_scale().into())
        } else {
            Scale::Linear((min.min(0.0)..max * 1.05).into())
        }
    }
}

/// A coordinate whose kind is known only at run time.
enum Scale {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
    /// So many groups, each one wide and labelled in its middle.
    Groups(usize),
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(scale) => scale.map(value, limit),
            Self::Log(scale) => scale.map(value, limit),
            Self::Groups(_) => RangedCoordf64::from(self.range()).map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(scale) => scale.key_points(hint),
            Self::Log(scale) => scale.key_points(hint),
            Self::Groups(groups) => (0..*groups).map(|group| group as f64 + 0.5).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(scale) => scale.range(),
            Self::Log(scale) => scale.range(),
            Self::Groups(groups) => 0.0..*groups as f64,
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Scale, Scale>>;

/// The title, the legend right of the chart, where it hides no point, and the empty chart.
fn frame<'a, 'n>(
    root: &Area<'a>,
    title: &str,
    names: impl Iterator<Item = &'n str>,
    x: Scale,
    y: Scale,
) -> Result<Chart<'a>> {
    root.fill(&WHITE)?;
    let (left, legend) = root.titled(title, (FONT, 22))?.split_horizontally(SIZE.0 - LEGEND);
    for (n, name) in names.enumerate() {
        let height = 30 + 26 * n as i32;
        legend.draw(&PathElement::new([(8, height), (36, height)], colour(n).stroke_width(2)))?;
        legend.draw(&marker(n, (22, height)))?;
        legend.draw(&Text::new(name.to_owned(), (44, height - 7), (FONT, 15)))?;
    }
    let mut builder = ChartBuilder::on(&left);
    builder.margin(12).x_label_area_size(48).y_label_area_size(80);
    Ok(builder.build_cartesian_2d(x, y)?)
}

fn colour(n: usize) -> RGBColor {
    COLOURS[n % COLOURS.len()]
}

/// A mark of its own for every series, so that the plot can be read without its colours.
fn marker<'a, P: Clone + 'static>(n: usize, at: P) -> DynElement<'static, SVGBackend<'a>, P> {
    let colour = colour(n);
    match n % 5 {
        0 => Circle::new(at, 5, colour.filled()).into_dyn(),
        1 => TriangleMarker::new(at, 6, colour.filled()).into_dyn(),
        2 => Cross::new(at, 5, colour.stroke_width(2)).into_dyn(),
        3 => Circle::new(at, 5, colour.stroke_width(2)).into_dyn(),
        _ => TriangleMarker::new(at, 6, colour.stroke_width(2)).into_dyn(),
    }
}

/// Short, whatever the size.
fn number(value: &f64) -> String {
    if *value != 0.0 && value.abs() < 0.01 { format!("{value:e}") } else { format!("{value}") }
}
