//! The figures as a picture: one bar for each contender, on a logarithmic scale, because the slowest take a
//! hundred times as long as the quickest.

use std::fmt::Write;

use super::super::Times;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 180.0;
const RIGHT: f64 = 80.0;
const TOP: f64 = 64.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const OURS: &str = "#2f6f4f";
const BARE: &str = "#b08a3e";
const OTHERS: &str = "#8a94a0";

/// Sorted by the median, quickest first: the bar ends at p50, the line at p99.
pub(super) fn draw(times: &[Times]) -> String {
    let mut rows: Vec<&Times> = times.iter().filter(|one| !one.sorted_ms.is_empty()).collect();
    rows.sort_by(|one, other| one.percentile(50).total_cmp(&other.percentile(50)));
    let longest = rows.iter().map(|one| one.percentile(99)).fold(1.0, f64::max);
    let shortest = rows.iter().map(|one| one.percentile(50)).fold(longest, f64::min);
    let scale = Scale { from: decade_below(shortest), to: longest * 1.15 };
    let bottom = TOP + ROW * super::super::count(rows.len());
    let mut svg = head(bottom + 34.0);
    axis(&mut svg, &scale, bottom);
    for (one, number) in rows.iter().zip(0_u32..) {
        row(&mut svg, &scale, one, TOP + ROW * f64::from(number));
    }
    svg + "</svg>\n"
}

/// Milliseconds to places on the picture.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn x(&self, ms: f64) -> f64 {
        let part = (ms / self.from).log10() / (self.to / self.from).log10();
        LEFT + part.max(0.0) * (WIDTH - LEFT - RIGHT)
    }
}

fn decade_below(ms: f64) -> f64 {
    10_f64.powf(ms.max(1e-3).log10().floor())
}

fn head(height: f64) -> String {
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" font-size="13">
<title>One run of a Python program that does nothing: milliseconds at p50 and p99</title>
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
<text x="16" y="26" font-size="16" font-weight="600" fill="#1c1f23">One run of a Python program that does nothing</text>
<text x="16" y="46" fill="#5b636b">milliseconds, logarithmic; the bar ends at p50, the thin line at p99</text>
"##
    )
}

/// A line at 1, 2 and 5 of each decade.
fn axis(svg: &mut String, scale: &Scale, bottom: f64) {
    let mut decade = scale.from;
    while decade < scale.to {
        for step in [1.0, 2.0, 5.0] {
            let ms = decade * step;
            if ms > scale.to {
                break;
            }
            let x = scale.x(ms);
            put(
                svg,
                format!(
                    r##"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom}" stroke="#e4e7ea"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="#5b636b">{ms}</text>"##,
                    bottom + 18.0
                ),
            );
        }
        decade *= 10.0;
    }
}

fn row(svg: &mut String, scale: &Scale, one: &Times, y: f64) {
    let (p50, p99) = (one.percentile(50), one.percentile(99));
    let colour = match one.name {
        name if name.starts_with("belljar") => OURS,
        super::PYTHON | super::FORK => BARE,
        _ => OTHERS,
    };
    let (middle, end, far) = (y + ROW / 2.0, scale.x(p50), scale.x(p99).max(scale.x(p50)));
    let (text, top) = (middle + 4.5, middle - BAR / 2.0);
    put(
        svg,
        format!(
            r##"<text x="{:.1}" y="{text:.1}" text-anchor="end" fill="#1c1f23">{}</text>"##,
            LEFT - 10.0,
            one.name
        ),
    );
    put(
        svg,
        format!(
            r##"<rect x="{LEFT}" y="{top:.1}" width="{:.1}" height="{BAR}" rx="2" fill="{colour}"/>"##,
            (end - LEFT).max(1.0)
        ),
    );
    put(
        svg,
        format!(
            r##"<line x1="{end:.1}" y1="{middle:.1}" x2="{far:.1}" y2="{middle:.1}" stroke="{colour}" stroke-width="2"/>"##
        ),
    );
    put(
        svg,
        format!(r##"<text x="{:.1}" y="{text:.1}" fill="#1c1f23">{p50:.1}</text>"##, far + 6.0),
    );
}

fn put(svg: &mut String, line: String) {
    // Writing to a string does not fail.
    writeln!(svg, "{line}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quicker_stands_above_and_every_bar_stays_inside() {
        let times = |name, ms| Times { name, sorted_ms: vec![ms] };
        let svg = draw(&[times("slow", 300.0), times("quick", 0.7)]);
        assert!(svg.find("quick") < svg.find("slow"), "{svg}");
        let scale = Scale { from: 0.1, to: 345.0 };
        assert!(scale.x(300.0) < WIDTH - RIGHT && scale.x(0.01) >= LEFT);
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
