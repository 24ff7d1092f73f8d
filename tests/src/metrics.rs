//! Prometheus text, parsed.

use std::collections::HashMap;

/// One scrape: single series, and sums over all labels by metric name.
#[derive(Debug, Default, Clone)]
pub struct Scrape(HashMap<String, f64>);

impl Scrape {
    /// Reads the text exposition format; what is not a sample is passed over.
    pub fn parse(text: &str) -> Self {
        let mut sums = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<f64>() else {
                continue;
            };
            let name = series.split('{').next().unwrap_or(series).trim();
            *sums.entry(name.to_owned()).or_insert(0.0) += value;
            if name != series {
                sums.insert(series.to_owned(), value);
            }
        }
        Self(sums)
    }

    /// The value of a counter or gauge, of one series or summed over all labels; 0 where there is none yet.
    pub fn get(&self, name: &str) -> u64 {
        // Counters and counts are whole and far below 2^53.
        self.0.get(name).map_or(0, |value| value.round() as u64)
    }

    /// Whether there is such a metric.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_summed_and_comments_ignored() {
        let scrape = Scrape::parse(
            "# HELP a_total x\n# TYPE a_total counter\na_total{q=\"x y\"} 2\na_total{q=\"z\"} 3\nb 1e3\n",
        );
        assert_eq!(
            (scrape.get("a_total"), scrape.get("b"), scrape.get("c")),
            (5, 1000, 0)
        );
        assert!(scrape.has("b") && !scrape.has("c"));
    }
}
