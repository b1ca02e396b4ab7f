//! How long a case takes, known well enough to rank candidates by it.
//!
//! What a candidate says about its own time is worth nothing, so the kernel's count of a sandbox's CPU time
//! is taken: of one that is loaded and answers the case once, less what one takes that is only loaded.
//! Every repetition has a sandbox of its own, or a candidate could remember the answer. Instructions are counted
//! from outside as well, where the machine has a counter for them ([`super::instructions`]).

use std::sync::Arc;

use super::Timing;
use super::calls::{self, Answers, Loaded};
use super::case::Kind;
use super::lanes::Shared;
use super::streams;
use crate::model::error::Error;

/// Repetitions before the first look at the interval, and at most.
const LEAST: usize = 6;
const MOST: usize = 24;
/// An interval this narrow, as a share of the median, is good enough; or this many milliseconds.
const NARROW: f64 = 0.05;
const NARROW_MS: f64 = 0.3;

/// Times of one kind, sorted.
#[derive(Debug, Default)]
struct Sample {
    sorted_ms: Vec<f64>,
}

impl Sample {
    fn add(&mut self, time_ms: f64) {
        let at = self.sorted_ms.partition_point(|one| *one < time_ms);
        self.sorted_ms.insert(at, time_ms);
    }

    fn median(&self) -> f64 {
        let (count, all) = (self.sorted_ms.len(), &self.sorted_ms);
        match count {
            0 => 0.0,
            _ if count % 2 == 1 => all[count / 2],
            _ => f64::midpoint(all[count / 2 - 1], all[count / 2]),
        }
    }

    /// An interval that holds the median with at least 95 % confidence, whatever the distribution: so many
    /// of the smallest and the largest are left out as a fair coin would rarely pass.
    fn interval(&self) -> (f64, f64) {
        let count = self.sorted_ms.len();
        let mut below = 0; // elements that can be left out on each side
        let mut tail = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
        let mut term = tail;
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        while 2.0 * tail <= 0.05 && below < count / 2 {
            below += 1;
            term *= (count - below + 1) as f64 / below as f64;
            tail += term;
        }
        let out = below.saturating_sub(1);
        match count {
            0 => (0.0, 0.0),
            _ => (self.sorted_ms[out], self.sorted_ms[count - 1 - out]),
        }
    }

    fn is_narrow(&self) -> bool {
        let (low, high) = self.interval();
        self.sorted_ms.len() >= LEAST && high - low <= (self.median() * NARROW).max(NARROW_MS)
    }
}

/// Measures every case that passed; `None` for those that cannot be measured.
pub(super) async fn measure(
    shared: &Arc<Shared>,
    passed: &[bool],
) -> Result<Vec<Option<Timing>>, Error> {
    let mut loading = Measured::default();
    let calls = shared.checked.cases.iter().zip(passed);
    if calls.clone().any(|(case, passed)| *passed && case.kind() == Kind::Call) {
        while loading.times.sorted_ms.len() < MOST
            && !loading.times.is_narrow()
            && !shared.is_over()
        {
            let Some(one) = once(shared, None).await? else { break };
            loading.add(one);
        }
    }
    let mut all = Vec::with_capacity(passed.len());
    for (index, (case, passed)) in calls.enumerate() {
        let base = match case.kind() {
            Kind::Call => Some(&loading),
            Kind::Streams => None,
            Kind::Assert => {
                all.push(None); // most of its time is the test's own
                continue;
            }
        };
        all.push(if *passed { measure_one(shared, index, base).await? } else { None });
    }
    Ok(all)
}

async fn measure_one(
    shared: &Arc<Shared>,
    index: usize,
    base: Option<&Measured>,
) -> Result<Option<Timing>, Error> {
    let mut measured = Measured::default();
    while measured.times.sorted_ms.len() < MOST && !measured.times.is_narrow() {
        if shared.is_over() {
            break;
        }
        let Some(one) = once(shared, Some(index)).await? else { return Ok(None) };
        measured.add(one);
    }
    let sample = &measured.times;
    if sample.sorted_ms.is_empty() {
        return Ok(None);
    }
    let (low, high) = sample.interval();
    let (base_ms, (base_low, base_high)) =
        base.map_or((0.0, (0.0, 0.0)), |base| (base.times.median(), base.times.interval()));
    let (low_ms, high_ms) = ((low - base_high).max(0.0), (high - base_low).max(0.0));
    let cpu_ms = (sample.median() - base_ms).clamp(low_ms, high_ms);
    let narrow = high_ms - low_ms <= (cpu_ms * 2.0 * NARROW).max(2.0 * NARROW_MS);
    let (instructions, no_instructions) = match measured.instructions(base) {
        Ok(count) => (Some(count), None),
        Err(why) => (None, Some(why)),
    };
    Ok(Some(Timing {
        repetitions: u32::try_from(sample.sorted_ms.len()).unwrap_or(u32::MAX),
        cpu_ms,
        low_ms,
        high_ms,
        instructions,
        no_instructions,
        // To be loaded cannot take longer than to be loaded and asked.
        noisy: !narrow || base_low > high || host_is_busy(),
    }))
}

/// What one sandbox took: CPU time, and instructions or why they are not known.
type Once = (f64, Result<u64, String>);

/// Sandboxes of one kind.
#[derive(Debug, Default)]
struct Measured {
    times: Sample,
    counts: Vec<u64>,
    no_counts: Option<String>,
}

impl Measured {
    fn add(&mut self, (time_ms, count): Once) {
        self.times.add(time_ms);
        match count {
            Ok(count) => self.counts.push(count),
            Err(why) => self.no_counts = Some(why),
        }
    }

    fn count(&self) -> Result<u64, String> {
        if let Some(why) = &self.no_counts {
            return Err(why.clone());
        }
        let mut counts = self.counts.clone();
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied().ok_or_else(|| "nothing was counted".to_owned())
    }

    /// What is left of them without those of loading.
    fn instructions(&self, base: Option<&Self>) -> Result<u64, String> {
        let loading = base.map_or(Ok(0), Self::count)?;
        Ok(self.count()?.saturating_sub(loading))
    }
}

/// One sandbox with a case in it, or only loaded. `None` when that failed, or did not pass.
async fn once(shared: &Arc<Shared>, index: Option<usize>) -> Result<Option<Once>, Error> {
    let _turn = shared.turn().await?;
    if let Some(index) = index
        && shared.case(index).kind() == Kind::Streams
    {
        let why = "not counted for cases with a standard input".to_owned();
        let time_ms = streams::cpu_ms(shared, shared.case(index)).await?;
        return Ok(time_ms.map(|time_ms| (time_ms, Err(why))));
    }
    let hidden = index.is_some_and(|index| shared.case(index).hidden);
    let Ok(Loaded::Ready(mut session, _)) = calls::open_counted(shared, hidden).await else {
        return Ok(None);
    };
    if let Some(index) = index {
        let case = shared.case(index);
        match calls::call(&mut session, shared, case, shared.checked.limit(case), Answers::Copy)
            .await
        {
            Ok((judged, ..)) if judged.verdict == super::CaseVerdict::Passed => {}
            Ok(_) | Err(_) => return Ok(None),
        }
    }
    let counts = session.counts.clone();
    if index.is_none() {
        // At once: a candidate that sees that nobody asks could take its time then, to have it subtracted from the others.
        counts.end_program();
    }
    Ok(session.close().await.map(|outcome| (outcome.cpu_ms, counts.read())))
}

/// More wants to run than there are processors.
fn host_is_busy() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    load > f64::from(u32::try_from(cores).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(times: impl IntoIterator<Item = f64>) -> Sample {
        let mut sample = Sample::default();
        times.into_iter().for_each(|one| sample.add(one));
        sample
    }

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // Known values: of 6 all are needed, of 9 one on each side can go, of 20 five.
        assert_eq!(sample((1..=6).map(f64::from)).interval(), (1.0, 6.0));
        assert_eq!(sample((1..=9).map(f64::from)).interval(), (2.0, 8.0));
        assert_eq!(sample((1..=20).map(f64::from)).interval(), (6.0, 15.0));
        assert_eq!(sample((1..=20).map(f64::from)).median(), 10.5);
    }

    #[test]
    fn even_times_are_narrow_soon_and_uneven_ones_are_not() {
        assert!(sample([10.0; 6]).is_narrow());
        assert!(!sample([10.0; 5]).is_narrow(), "too few to say");
        assert!(!sample([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).is_narrow());
        let mut spiky = vec![10.0; 20];
        spiky.extend([500.0, 600.0]);
        assert!(sample(spiky).is_narrow(), "a few outliers do not matter");
    }
}
