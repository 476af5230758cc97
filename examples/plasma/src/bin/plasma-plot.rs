// SPDX-License-Identifier: Apache-2.0
//! Draws the output of `plasma-indexed`: some electrons of two epochs, by a scan, and a few through
//! all epochs, by their keys.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use esker_base::store::url;
use esker_base::{Error, Kind, Result};
use esker_imd::DirectoryReader;
use plasma::program::{self, DIRECTORY};
use plasma::{Electron, Setup};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Size of the picture.
const SIZE: (u32, u32) = (960, 640);
/// Electrons drawn per epoch.
const POINTS: u64 = 800;
/// Range of velocities drawn.
const VELOCITIES: std::ops::Range<f64> = -2.5..2.5;

/// Draw the electrons that plasma-indexed wrote
#[derive(Parser)]
struct Plot {
    /// The store with the directory
    store: String,
    /// The picture, an SVG file
    picture: PathBuf,
    /// Electrons to trace
    ids: Vec<u64>,
}

fn main() -> ExitCode {
    let plot = Plot::parse();
    program::exit(plot.run())
}

impl Plot {
    fn run(&self) -> Result<()> {
        let store = url::open(&self.store)?;
        let reader = DirectoryReader::open(&store, DIRECTORY, 64 << 20)?;
        let epochs = reader.epochs_complete()?;
        let mut panels = Vec::new();
        for epoch in [epochs / 2, epochs.saturating_sub(1)] {
            panels.push((format!("epoch {epoch}: velocity over x"), some(&reader, epoch)?));
        }
        let keys: Vec<[u8; 8]> = self.ids.iter().map(|id| id.to_be_bytes()).collect();
        let answers = reader.get_many(&keys, 0..epochs, 1)?;
        let traces = keys.iter().zip(&answers.values).map(|(key, values)| {
            let electron = |value: &esker_imd::IndexedValue| {
                let electron = Electron::parse(key, &value.bytes);
                let electron = electron.ok_or_else(|| program::no_electron(DIRECTORY))?;
                Ok((f64::from(value.epoch), electron.velocity[0]))
            };
            values.iter().map(electron).collect()
        });
        let traces: Vec<Vec<(f64, f64)>> = traces.collect::<Result<_>>()?;
        draw(&self.picture, &panels, &traces, f64::from(epochs))
            .map_err(|error| Error::new(Kind::Unavailable, format!("draw: {error}")))
    }
}

/// Position and velocity in x of some electrons.
fn some(reader: &DirectoryReader, epoch: u32) -> Result<Vec<(f64, f64)>> {
    let mut all = Vec::new();
    reader.scan(epoch, |key, state| {
        let electron =
            Electron::parse(key, state).ok_or_else(|| program::no_electron(DIRECTORY))?;
        all.push((electron.id, electron.place[0], electron.velocity[0]));
        Ok(true)
    })?;
    let every = (all.len() as u64 / POINTS).max(1) | 1;
    all.retain(|(id, ..)| id.is_multiple_of(every));
    Ok(all.into_iter().map(|(_, x, velocity)| (x, velocity)).collect())
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

fn draw(
    path: &PathBuf,
    panels: &[(String, Vec<(f64, f64)>)],
    traces: &[Vec<(f64, f64)>],
    epochs: f64,
) -> Drawn<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(SIZE.1 / 2);
    let width = Setup::two_streams().grid.width;
    for (area, (title, points)) in above.split_evenly((1, 2)).iter().zip(panels) {
        let mut chart = chart(area, title, width, "x")?;
        let points = points.iter().map(|point| Circle::new(*point, 1, BLUE.filled()));
        chart.draw_series(points)?;
    }
    let mut chart = chart(&below, "velocity of the traced electrons", epochs - 1.0, "epoch")?;
    for (number, trace) in traces.iter().enumerate() {
        let line = LineSeries::new(trace.iter().copied(), Palette99::pick(number).stroke_width(2));
        chart.draw_series(line)?;
    }
    root.present()?;
    Ok(())
}

fn chart<'a, 'b>(
    area: &DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    title: &str,
    end: f64,
    across: &str,
) -> Drawn<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..end, VELOCITIES)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc(across).y_desc("vx").draw()?;
    Ok(chart)
}
