//! Whether `/metrics` agrees with what an instance did.

/// What is wrong with the metrics of an instance, which has nothing to do any more.
pub(crate) fn problems(instance: &str, text: &str) -> Vec<String> {
    let metrics = Metrics(text);
    let mut found = Vec::new();
    let mut require = |holds: bool, what: String| {
        if !holds {
            found.push(format!("{instance}: {what}"));
        }
    };
    for (kind, route) in [("mutex", "parts"), ("counting", "upstream")] {
        let of_kind = |name: &str| metrics.sum(name, &[("kind", kind)]);
        let acquired = of_kind("leasehold_acquired_total");
        let answered = metrics.sum("requests_total", &[("route", route), ("status", "200")]);
        require(
            acquired > 0.0 && acquired >= answered,
            format!("{acquired} x {kind} for {answered} requests"),
        );
        let waited = of_kind("leasehold_wait_seconds_count");
        require(
            waited >= acquired,
            format!("{waited} waits, but {acquired} acquisitions of the kind {kind}"),
        );
    }
    let calls = metrics.sum("leasehold_held", &[("kind", "counting")]);
    require(calls == 0.0, format!("{calls} permits are still held"));
    let waiting = metrics.sum("leasehold_waiting", &[("kind", "counting")]);
    require(waiting == 0.0, format!("{waiting} requests for permits still wait"));
    let connected = metrics.sum("leasehold_store_connected", &[]);
    require(connected > 0.0, "the store is not connected".to_owned());
    found
}

/// In the text format of Prometheus.
struct Metrics<'a>(&'a str);

impl Metrics<'_> {
    /// Of all series of this name with these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let of_name = self.0.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with(['{', ' ']).then_some(rest)
        });
        let of_labels = of_name
            .filter(|rest| labels.iter().all(|(key, value)| rest.contains(&format!("{key}=\"{value}\""))));
        of_labels
            .filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok())
            .fold(0.0, |sum, value| sum + value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE leasehold_acquired_total counter
leasehold_acquired_total{store=\"memory:\",kind=\"mutex\",source=\"store\"} 5
leasehold_acquired_total{store=\"memory:\",kind=\"mutex\",source=\"local\"} 2
leasehold_acquired_total{store=\"memory:\",kind=\"counting\",source=\"store\"} 3
leasehold_wait_seconds_count{store=\"memory:\",kind=\"mutex\"} 7
leasehold_wait_seconds_count{store=\"memory:\",kind=\"counting\"} 3
leasehold_held{store=\"memory:\",kind=\"counting\"} 0
leasehold_store_connected{store=\"memory:\"} 1
requests_total{route=\"parts\",status=\"200\"} 6
requests_total{route=\"upstream\",status=\"200\"} 3
";

    #[test]
    fn metrics_that_disagree_are_found() {
        assert!(problems("api-1", TEXT).is_empty(), "{:?}", problems("api-1", TEXT));
        for (right, wrong) in [
            ("source=\"store\"} 5", "source=\"store\"} 3"),
            ("kind=\"counting\"} 0", "kind=\"counting\"} 1"),
            ("leasehold_store_connected{store=\"memory:\"} 1", ""),
        ] {
            assert_eq!(problems("api-1", &TEXT.replace(right, wrong)).len(), 1, "{wrong}");
        }
    }
}
