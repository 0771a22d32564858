//! Lines of what `nvidia-smi` prints, taken apart

/// `text` without the escape sequences that underline its header
pub(super) fn plain_text(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\x1b' && rest.next_if_eq(&'[').is_some() {
            // Parameters, then one letter (ECMA-48, section 5.4)
            while rest.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
            rest.next();
        } else if c != '\r' {
            plain.push(c);
        }
    }
    plain
}

/// The number in `GPU7`
pub(super) fn gpu_index(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("GPU")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
    digits.parse().ok()
}

/// A column right of those of devices
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Trailing {
    CpuAffinity,
    NumaAffinity,
    GpuNumaId,
}

impl Trailing {
    /// Names of the columns, in words
    const NAMES: [(Self, &'static [&'static str]); 3] = [
        (Self::CpuAffinity, &["CPU", "Affinity"]),
        (Self::NumaAffinity, &["NUMA", "Affinity"]),
        (Self::GpuNumaId, &["GPU", "NUMA", "ID"]),
    ];

    /// The column as the header names it
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CpuAffinity => "CPU Affinity",
            Self::NumaAffinity => "NUMA Affinity",
            Self::GpuNumaId => "GPU NUMA ID",
        }
    }

    fn starting<'w, 'a>(words: &'w [&'a str]) -> Option<(Self, &'w [&'a str])> {
        Self::NAMES
            .iter()
            .find_map(|(column, name)| Some((*column, words.strip_prefix(*name)?)))
    }
}

/// The header, taken apart
#[derive(Debug)]
pub(super) struct Header<'a> {
    /// Names of devices
    pub(super) devices: Vec<&'a str>,
    /// Columns right of them
    pub(super) trailing: Vec<Trailing>,
    /// Names of unknown columns that follow
    pub(super) unknown: Vec<&'a str>,
}

impl<'a> Header<'a> {
    pub(super) fn of(line: &'a str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let devices = (0..words.len())
            .find(|&at| Trailing::starting(&words[at..]).is_some())
            .unwrap_or(words.len());
        let mut trailing = Vec::new();
        let mut rest = &words[devices..];
        while let Some((column, left)) = Trailing::starting(rest) {
            trailing.push(column);
            rest = left;
        }
        let unknown = rest.to_vec();
        Self {
            devices: words[..devices].to_vec(),
            trailing,
            unknown,
        }
    }
}

/// The cells of a row right of its name, and what stands right of them, by column
pub(super) fn cells(line: &str, devices: usize, trailing: usize) -> (Vec<&str>, Vec<&str>) {
    let tabbed: Vec<&str> = line.split('\t').map(str::trim).collect();
    // Blanks inside a field: tabs that someone turned to blanks, but for a few
    let by_tabs = tabbed.len() > devices
        && tabbed[..=devices]
            .iter()
            .all(|cell| !cell.is_empty() && !cell.contains(char::is_whitespace));
    if !by_tabs {
        let mut words = line.split_whitespace().skip(1);
        return (words.by_ref().take(devices).collect(), words.collect());
    }
    let mut rest = tabbed[devices + 1..].to_vec();
    // The driver prints two tabs before the last column, since the name of the one before it is
    // wider than a tab stop
    while rest.len() > trailing {
        match rest.iter().rposition(|cell| cell.is_empty()) {
            Some(empty) => rest.remove(empty),
            None => break,
        };
    }
    (tabbed[1..=devices].to_vec(), rest)
}

/// Entries of `NIC Legend`: line from 1, the name in the table, the name of the device
pub(super) fn nic_legend(text: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    text.lines()
        .enumerate()
        .skip_while(|(_, line)| !line.trim_start().starts_with("NIC Legend"))
        .filter_map(|(number, line)| {
            let (name, device) = line.split_once(':')?;
            let (name, device) = (name.trim(), device.trim());
            (name.starts_with("NIC") && !device.is_empty() && !name.contains(' ')).then_some((
                number + 1,
                name,
                device,
            ))
        })
}

/// A line of `nvidia-smi -L`
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Listed<'a> {
    /// `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-…)`
    Gpu {
        index: u32,
        name: &'a str,
        uuid: &'a str,
    },
    /// `  MIG 1g.10gb     Device  0: (UUID: MIG-…)`, of the GPU above
    Instance { profile: &'a str, uuid: &'a str },
}

impl<'a> Listed<'a> {
    pub(super) fn of(line: &'a str) -> Option<Self> {
        let (before, uuid) = line.trim().split_once("(UUID: ")?;
        let uuid = uuid.strip_suffix(')')?.trim();
        if let Some(gpu) = before.strip_prefix("GPU ") {
            let (index, name) = gpu.split_once(':')?;
            let (index, name) = (index.trim().parse().ok()?, name.trim());
            Some(Self::Gpu { index, name, uuid })
        } else {
            let profile = before.strip_prefix("MIG ")?.split_whitespace().next()?;
            Some(Self::Instance { profile, uuid })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_are_left_out() {
        assert_eq!(plain_text("\x1b[4m\tGPU0\x1b[0m\r\n"), "\tGPU0\n");
        assert_eq!(plain_text("\x1b[4;1m"), "");
        assert_eq!(plain_text("\x1b["), "");
    }

    #[test]
    fn two_tabs_before_the_last_column_are_one() {
        let row = "GPU0\t X \tPIX\t0-23,48-71\t0\t\tN/A";
        assert_eq!(
            cells(row, 2, 3),
            (vec!["X", "PIX"], vec!["0-23,48-71", "0", "N/A"])
        );
    }

    #[test]
    fn an_empty_affinity_stays_in_its_column() {
        assert_eq!(
            cells("GPU0\t X \t\t0\t\tN/A", 1, 3),
            (vec!["X"], vec!["", "0", "N/A"])
        );
    }

    #[test]
    fn a_list_of_gpus_is_read() {
        assert_eq!(
            Listed::of("GPU 3: Tesla V100-SXM2-32GB (UUID: GPU-00ff)"),
            Some(Listed::Gpu {
                index: 3,
                name: "Tesla V100-SXM2-32GB",
                uuid: "GPU-00ff"
            })
        );
        assert_eq!(
            Listed::of("  MIG 1g.10gb     Device  0: (UUID: MIG-01)"),
            Some(Listed::Instance {
                profile: "1g.10gb",
                uuid: "MIG-01"
            })
        );
        assert_eq!(Listed::of("GPU x: y (UUID: z)"), None);
    }
}
