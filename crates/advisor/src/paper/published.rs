// SPDX-License-Identifier: Apache-2.0
//! Published numbers: those that the paper prints, as it prints them, including misprints, which
//! `contradictions` finds. p-values printed as ".000" are 0 here.
//!
//! Source: Kougkas et al. 2016, Tables 2–5 and the text on Figures 1–15.

use crate::observation::StorageKind;

/// One system's line of Table 2, in MB/s.
#[derive(Clone, Copy, Debug)]
pub struct PrintedMeans {
    /// The mean rate.
    pub mean: f64,
    /// Its standard deviation.
    pub standard_deviation: f64,
    /// The standard error of the mean.
    pub standard_error: f64,
}

/// One system's line of Table 3: mean rates in MB/s by category.
#[derive(Clone, Copy, Debug)]
pub struct PrintedGroups {
    /// Contiguous and noncontiguous.
    pub access_pattern: [f64; 2],
    /// Hard disks and solid-state disks.
    pub device: [f64; 2],
    /// One and four metadata servers.
    pub metadata_servers: [f64; 2],
    /// "Same amount of metadata ops".
    pub same_metadata: f64,
}

/// One cell of Table 4.
#[derive(Clone, Copy, Debug)]
pub struct PrintedCorrelation {
    /// The letter of the variable.
    pub letter: &'static str,
    /// Pearson's r with the rate.
    pub r: f64,
    /// Its p-value.
    pub p: f64,
}

/// One line of Table 5.
#[derive(Clone, Copy, Debug)]
pub struct PrintedCoefficient {
    /// The letter of the variable; empty for the constant.
    pub letter: &'static str,
    /// The coefficient.
    pub value: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// t.
    pub t: f64,
    /// Its p-value.
    pub p: f64,
    /// The ends of the 95 % confidence interval.
    pub interval: [f64; 2],
    /// Half of the last printed digit of the coefficient and of its standard error.
    pub rounding: [f64; 2],
    /// Half of the last printed digit of the interval's ends.
    pub interval_rounding: f64,
}

/// All that the paper prints about one system.
#[derive(Clone, Copy, Debug)]
pub struct PrintedSystem {
    /// Its name.
    pub name: &'static str,
    /// Its category.
    pub kind: StorageKind,
    /// Table 2.
    pub means: PrintedMeans,
    /// Table 3.
    pub groups: PrintedGroups,
    /// Table 4.
    pub correlations: [PrintedCorrelation; 8],
    /// Table 5, the constant first.
    pub coefficients: &'static [PrintedCoefficient],
    /// The letters of the excluded variables.
    pub excluded: &'static [&'static str],
    /// The adjusted R² in Table 5.
    pub adjusted_r_squared: f64,
}

const fn correlation(letter: &'static str, r: f64, p: f64) -> PrintedCorrelation {
    PrintedCorrelation { letter, r, p }
}

/// A coefficient with three decimals in every column.
const fn coefficient(
    letter: &'static str,
    [value, standard_error, t, p]: [f64; 4],
    interval: [f64; 2],
) -> PrintedCoefficient {
    PrintedCoefficient {
        letter,
        value,
        standard_error,
        t,
        p,
        interval,
        rounding: [0.0005, 0.0005],
        interval_rounding: 0.0005,
    }
}

const ORANGEFS_COEFFICIENTS: [PrintedCoefficient; 10] = [
    // The table prints the upper end as "-.123:606".
    coefficient("", [-177.033, 27.210, -6.506, 0.0], [-230.460, -123.606]),
    coefficient("s", [-6.494, 2.856, -2.274, 0.023], [-12.101, -0.887]),
    coefficient("m", [30.325, 2.947, 10.289, 0.0], [24.538, 36.112]),
    coefficient("c", [13.533, 1.197, 11.303, 0.0], [11.182, 15.884]),
    coefficient("a", [21.929, 12.418, 1.766, 0.058], [-2.453, 46.310]),
    PrintedCoefficient {
        letter: "g",
        value: -0.00023,
        standard_error: 0.00005,
        t: -4.685,
        p: 0.0,
        interval: [-0.0003, -0.0001],
        rounding: [0.000_005, 0.000_005],
        interval_rounding: 0.000_05,
    },
    coefficient("p", [0.140, 0.057, 2.454, 0.014], [0.028, 0.253]),
    PrintedCoefficient {
        letter: "R",
        value: 6.702e-7,
        standard_error: 1.2e-7,
        t: 5.543,
        p: 0.0,
        interval: [4.3e-6, 9.0e-6],
        rounding: [0.5e-10, 0.05e-7],
        interval_rounding: 0.05e-6,
    },
    coefficient("d", [69.034, 5.044, 13.686, 0.0], [59.130, 78.938]),
    coefficient("M", [-0.089, 0.010, -8.913, 0.0], [-0.109, -0.069]),
];

#[expect(clippy::approx_constant, reason = "6.280 is the end of an interval, not 2π")]
const HYPERDEX_COEFFICIENTS: [PrintedCoefficient; 6] = [
    coefficient("", [-282.618, 30.890, -9.149, 0.0], [-343.276, -221.959]),
    coefficient("s", [61.754, 6.566, 9.405, 0.0], [48.860, 74.647]),
    coefficient("m", [-18.096, 9.340, -1.937, 0.053], [-36.438, 2.46]),
    coefficient("c", [12.283, 3.057, 4.018, 0.0], [6.280, 18.285]),
    coefficient("p", [0.592, 0.153, 3.865, 0.0], [0.291, 0.892]),
    coefficient("d", [70.785, 16.230, 4.361, 0.0], [38.914, 102.657]),
];

/// The numbers that the paper prints about OrangeFS.
pub const ORANGEFS: PrintedSystem = PrintedSystem {
    name: "OrangeFS",
    kind: StorageKind::FileSystem,
    means: PrintedMeans {
        mean: 92.762_694,
        standard_deviation: 111.075_107,
        standard_error: 4.237_779_7,
    },
    groups: PrintedGroups {
        access_pattern: [95.068_966, 81.123_016],
        device: [52.272_727, 120.571_98],
        metadata_servers: [29.611_111, 108.573_333],
        same_metadata: 44.814_553,
    },
    correlations: [
        correlation("s", -0.062, 0.104),
        correlation("m", 0.313, 0.0),
        correlation("c", 0.413, 0.0),
        correlation("a", -0.062, 0.104),
        correlation("g", -0.148, 0.0),
        correlation("p", 0.055, 0.150),
        correlation("d", 0.319, 0.0),
        correlation("M", -0.459, 0.0),
    ],
    coefficients: &ORANGEFS_COEFFICIENTS,
    excluded: &["r", "A"],
    adjusted_r_squared: 0.633,
};

/// The numbers that the paper prints about HyperDex.
pub const HYPERDEX: PrintedSystem = PrintedSystem {
    name: "HyperDex",
    kind: StorageKind::KeyValue,
    means: PrintedMeans {
        mean: 212.552_191,
        standard_deviation: 196.600_468,
        standard_error: 7.765_251_6,
    },
    groups: PrintedGroups {
        access_pattern: [186.002_727, 182.056_130],
        device: [138.617_318, 160.088_717],
        metadata_servers: [129.658_691, 210.626_432],
        same_metadata: 183.046_248,
    },
    correlations: [
        correlation("s", 0.382, 0.0),
        correlation("m", 0.357, 0.0),
        correlation("c", 0.263, 0.0),
        correlation("a", -0.013, 0.752),
        correlation("g", -0.008, 0.845),
        correlation("p", 0.122, 0.002),
        correlation("d", 0.158, 0.0),
        correlation("M", 0.005, 0.898),
    ],
    coefficients: &HYPERDEX_COEFFICIENTS,
    excluded: &["a", "g", "r", "R", "A", "M"],
    adjusted_r_squared: 0.301,
};

/// Both systems.
pub const SYSTEMS: [&PrintedSystem; 2] = [&ORANGEFS, &HYPERDEX];

/// Rows of the dataset, as the text has it (§5.2.1).
pub const ROWS_IN_TEXT: usize = 1329;

/// The adjusted R² of OrangeFS in the text (§5.2.3).
pub const ADJUSTED_R_SQUARED_IN_TEXT: f64 = 0.0633;

impl PrintedSystem {
    /// The rows of Table 2: the square of standard deviation over standard error.
    #[must_use]
    pub fn rows(&self) -> f64 {
        (self.means.standard_deviation / self.means.standard_error).powi(2).round()
    }

    /// The three pairs of group means that divide the same rows, with the name of the variable.
    #[must_use]
    pub fn group_pairs(&self) -> [(&'static str, [f64; 2]); 3] {
        [
            ("access pattern", self.groups.access_pattern),
            ("storage device", self.groups.device),
            ("metadata servers", self.groups.metadata_servers),
        ]
    }
}
