//! The picture: which part of all took how long, a line for each workload.

use std::time::Duration;

use latchwork::{Error, ErrorKind};
use plotters::prelude::*;

use super::{Measured, Workload};

const SIZE: (u32, u32) = (900, 480);
/// More points than that nobody sees.
const POINTS: usize = 400;
const COLORS: [RGBColor; 4] = [
    RGBColor(0x4c, 0x8e, 0xd9),
    RGBColor(0x1a, 0x7f, 0x37),
    RGBColor(0xd1, 0x24, 0x2f),
    RGBColor(0x82, 0x50, 0xdf),
];

/// The picture of all workloads, in SVG.
pub(crate) fn draw(store: &str, all: &[(Workload, Measured)]) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw_on(&area, store, all).and_then(|()| area.present().map_err(Box::from))
    };
    drawn.map_err(|error| Error::new(ErrorKind::Corrupt, format!("svg: cannot draw: {error}")))?;
    Ok(svg)
}

fn draw_on(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    store: &str,
    all: &[(Workload, Measured)],
) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let times = || all.iter().flat_map(|(_, measured)| &measured.times);
    // In microseconds; a little room on both sides.
    let least = times().min().map_or(1.0, |least| *least as f64 / 1e3 / 1.2).max(0.01);
    let most = times().max().map_or(1_000.0, |most| *most as f64 / 1e3 * 1.2).max(least * 10.0);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("latchwork-bench store, {store}"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(52)
        .build_cartesian_2d((least..most).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("time (logarithmic)")
        .y_desc("% of all took no longer")
        .x_label_formatter(&|micros| label(*micros))
        .light_line_style(WHITE)
        .draw()?;
    for ((workload, measured), color) in all.iter().zip(COLORS) {
        let last = measured.times.len().saturating_sub(1);
        let step = (measured.times.len() / POINTS).max(1);
        let points = (0..measured.times.len()).filter(|n| n % step == 0 || *n == last).map(|n| {
            let part = if last == 0 { 100.0 } else { n as f64 * 100.0 / last as f64 };
            (measured.times[n] as f64 / 1e3, part)
        });
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(format!("{}: {}", workload.name(), workload.times()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

fn label(micros: f64) -> String {
    let length = Duration::from_secs_f64(micros / 1e6);
    match micros {
        m if m < 1_000.0 => format!("{m:.0} us"),
        m if m < 1e6 => format!("{:.0} ms", m / 1e3),
        _ => format!("{:.0} s", length.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_a_line_for_each_workload() {
        let measured = |times: Vec<u64>| Measured::of_cycles(times, Duration::from_secs(1));
        let all = [
            (Workload::Free, measured((1..5_000).map(|n| n * 1_000).collect())),
            (Workload::Contended, measured(vec![2_000_000])),
            (Workload::HandOff, measured(Vec::new())),
        ];
        let svg = draw("mem:", &all).unwrap();
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in ["free: acquire and release", "hand-off: from a release", "mem:"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(svg.len() < 100_000, "{} bytes", svg.len());
    }
}
