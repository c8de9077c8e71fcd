//! YCSB's key distributions, with its constants, so that the same keys are hot here and there.

use super::random::Random;

/// YCSB's `ZipfianGenerator.ZIPFIAN_CONSTANT`.
const ZIPFIAN_CONSTANT: f64 = 0.99;
/// YCSB's `ScrambledZipfianGenerator.ITEM_COUNT`, the size of the space that is scrambled.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's `ScrambledZipfianGenerator.ZETAN`: zeta of that space for the constant above.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// YCSB's `Utils.fnvhash64`: FNV-1a over the eight bytes, lowest first, then Java's `Math.abs`.
pub fn fnv_hash(value: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for byte in value.to_le_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

fn zeta(from: u64, to: u64, theta: f64, initial: f64) -> f64 {
    (from..to).fold(initial, |sum, i| sum + 1.0 / ((i + 1) as f64).powf(theta))
}

/// YCSB's `ZipfianGenerator`: ranks 0.., the lower the more frequent (Gray et al., "Quickly
/// generating billion-record synthetic databases").
#[derive(Clone)]
pub struct Zipfian {
    items: u64,
    /// Items at the beginning.
    first_items: u64,
    theta: f64,
    alpha: f64,
    zeta2: f64,
    zeta_n: f64,
    eta: f64,
}

impl Zipfian {
    pub fn new(items: u64) -> Self {
        Self::with_zeta(items, zeta(0, items, ZIPFIAN_CONSTANT, 0.0))
    }

    fn with_zeta(items: u64, zeta_n: f64) -> Self {
        let theta = ZIPFIAN_CONSTANT;
        let mut zipfian = Self {
            items,
            first_items: items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta2: zeta(0, 2, theta, 0.0),
            zeta_n,
            eta: 0.0,
        };
        zipfian.set_eta();
        zipfian
    }

    /// Gray's eta is that of the number of items; YCSB's stays with what they were at the
    /// beginning, which makes the third rank rarer the more they have grown. It is followed, so
    /// that both ask the same.
    fn set_eta(&mut self) {
        self.eta = (1.0 - (2.0 / self.first_items as f64).powf(1.0 - self.theta))
            / (1.0 - self.zeta2 / self.zeta_n);
    }

    /// The number of items has grown: zeta is continued, not computed again.
    pub fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta_n = zeta(self.items, items, self.theta, self.zeta_n);
            self.items = items;
            self.set_eta();
        }
    }

    pub fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta_n;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// How keys (or lengths of scans) are chosen.
#[derive(Clone)]
pub enum Distribution {
    /// Each as likely as any other.
    Uniform { from: u64, items: u64 },
    /// Zipfian over the ranks, which are then scattered over the keys by a hash.
    Scrambled {
        ranks: Zipfian,
        from: u64,
        items: u64,
    },
    /// Zipfian, the newest key the hottest.
    Latest(Zipfian),
    /// Zipfian from `from` upwards.
    Zipfian { ranks: Zipfian, from: u64 },
    /// A share of the operations goes to a share of the keys.
    Hotspot {
        from: u64,
        items: u64,
        hot_items: u64,
        hot_operations: f64,
    },
    /// Newer keys are exponentially more likely.
    Exponential { gamma: f64 },
    /// One after the other, then from the beginning again.
    Sequential { from: u64, items: u64, next: u64 },
}

impl Distribution {
    /// YCSB's `ScrambledZipfianGenerator(from, from + items - 1)`.
    pub fn scrambled(from: u64, items: u64) -> Self {
        Self::Scrambled {
            ranks: Zipfian::with_zeta(SCRAMBLED_ITEMS + 1, SCRAMBLED_ZETA),
            from,
            items,
        }
    }

    /// YCSB's `HotspotIntegerGenerator`: `data` of the keys get `operations` of the operations.
    pub fn hotspot(from: u64, items: u64, data: f64, operations: f64) -> Self {
        Self::Hotspot {
            from,
            items,
            hot_items: ((items as f64 * data) as u64).clamp(1, items),
            hot_operations: operations,
        }
    }

    /// YCSB's `ExponentialGenerator`: `percentile` percent of the operations fall into the newest
    /// `range` keys.
    pub fn exponential(percentile: f64, range: f64) -> Self {
        Self::Exponential {
            gamma: -(1.0 - percentile / 100.0).ln() / range,
        }
    }

    /// The next choice. `newest`: the newest key that is acknowledged.
    pub fn next(&mut self, random: &mut Random, newest: u64) -> u64 {
        match self {
            Self::Uniform { from, items } => *from + random.below(*items),
            Self::Scrambled { ranks, from, items } => *from + fnv_hash(ranks.next(random)) % *items,
            Self::Latest(ranks) => {
                ranks.grow(newest);
                newest.saturating_sub(ranks.next(random))
            }
            Self::Zipfian { ranks, from } => *from + ranks.next(random),
            Self::Hotspot {
                from,
                items,
                hot_items,
                hot_operations,
            } => {
                let cold = *items - *hot_items;
                if cold == 0 || random.unit() < *hot_operations {
                    *from + random.below(*hot_items)
                } else {
                    *from + *hot_items + random.below(cold)
                }
            }
            Self::Exponential { gamma } => loop {
                let back = -(1.0 - random.unit()).ln() / *gamma;
                if back <= newest as f64 {
                    return newest - back as u64;
                }
            },
            Self::Sequential { from, items, next } => {
                let key = *from + *next;
                *next = (*next + 1) % *items;
                key
            }
        }
    }
}
