//! Chance that can be had again: every choice follows from the task's seed and from what it is about.

/// Numbers that look random and follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The numbers of one step. They depend on nothing that was drawn before, so that a resumed evolution
    /// draws the same.
    pub(crate) fn of(seed: u64, words: &[u64]) -> Self {
        let mut chance = Self(seed);
        for word in words {
            chance.0 = chance.next() ^ word;
        }
        chance
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound.max(1) as u128;
        usize::try_from(wide >> 64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_draw_the_same_numbers() {
        let draw = |seed, words: &[u64]| {
            let mut chance = Chance::of(seed, words);
            [chance.next(), chance.next(), chance.next()]
        };
        assert_eq!(draw(7, &[1, 2]), draw(7, &[1, 2]));
        assert_ne!(draw(7, &[1, 2]), draw(7, &[2, 1]));
        assert_ne!(draw(7, &[1, 2]), draw(8, &[1, 2]));
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut chance = Chance::of(1, &[]);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[chance.below(5)] += 1);
        assert!(seen.iter().all(|count| (100..300).contains(count)), "{seen:?}");
    }
}
