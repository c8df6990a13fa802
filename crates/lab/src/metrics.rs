//! Reads the metrics of a node.

use crate::error::{Error, Result};
use std::net::SocketAddr;

/// A page of Prometheus text.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Fetches the page from the metrics address of a node, or with the token from the API.
    ///
    /// # Errors
    /// [`Error::Metrics`].
    pub async fn fetch(address: SocketAddr, token: Option<&str>) -> Result<Self> {
        let url = format!("http://{address}/metrics");
        let unreachable = |source| Error::Metrics { url: url.clone(), source };
        let mut request = reqwest::Client::new().get(&url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.and_then(reqwest::Response::error_for_status);
        let response = response.map_err(unreachable)?;
        response.text().await.map(Self).map_err(unreachable)
    }

    /// Iterates over name, labels and value of every sample.
    pub fn samples(&self) -> impl Iterator<Item = (&str, Vec<(&str, &str)>, f64)> {
        self.0.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let pairs = labels.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
            let pairs = pairs.map(|(key, value)| (key, value.trim_matches('"'))).collect();
            Some((name, pairs, value.parse().ok()?))
        })
    }

    /// Sum of the samples of a name that have all these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let chosen = self.samples().filter(|(sample, _, _)| *sample == name);
        chosen
            .filter(|(_, own, _)| labels.iter().all(|label| own.contains(label)))
            .map(|(_, _, value)| value)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_label() {
        let page = Metrics(
            "# TYPE drops counter\ndrops_total{reason=\"no_route\",vni=\"7\"} 3\n\
             drops_total{reason=\"no_route\",vni=\"8\"} 4\nup 1\n# EOF\n"
                .to_owned(),
        );
        assert_eq!(page.sum("drops_total", &[]), 7.0);
        assert_eq!(page.sum("drops_total", &[("vni", "8"), ("reason", "no_route")]), 4.0);
        assert_eq!(page.sum("up", &[]), 1.0);
        assert_eq!(page.sum("drops_total", &[("vni", "9")]), 0.0);
    }
}
