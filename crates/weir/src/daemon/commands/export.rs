//! `export/show`: what bridges export, and how it stands with their collectors.

use std::fmt::Write as _;

use export::collectors::Status;
use export::exporter::{Report, What};
use export::ipfix::exporter::Statistics;

use super::Context;
use crate::unixctl::command::Outcome;

/// `export/show`.
pub fn show(context: &Context, args: &[String]) -> Outcome {
    let bridges = context.bridges(args.first())?;
    let mut text = String::new();
    for bridge in bridges {
        let reports = bridge.export_reports();
        if !reports.is_empty() {
            let _ = writeln!(text, "{}:", bridge.name());
            reports.iter().for_each(|report| describe(&mut text, report));
        }
    }
    let lost = context.engine.switch.exporter().lost();
    if lost > 0 {
        let _ = writeln!(text, "{lost} samples found no room in the exporter's queue");
    }
    Ok(text)
}

fn describe(text: &mut String, report: &Report) {
    let _ = match &report.what {
        What::Sflow { samples } => writeln!(text, "  sFlow: {samples} samples"),
        What::Netflow { flows, lost } => writeln!(text, "  NetFlow: {flows} flows, {lost} records lost"),
        What::Ipfix(statistics) => writeln!(text, "  IPFIX: {}", of_ipfix(statistics)),
        What::CollectorSet(id, statistics) => writeln!(text, "  IPFIX, collector set {id}: {}", of_ipfix(statistics)),
    };
    for Status { target, sent, failed, refused, error } in &report.collectors {
        let _ = write!(text, "    {target}: {sent} datagrams sent, {failed} not sent, {refused} refused");
        let _ = match error {
            Some(error) => writeln!(text, "; {error}"),
            None => writeln!(text),
        };
    }
}

fn of_ipfix(Statistics { flows, current_flows, packets, .. }: &Statistics) -> String {
    format!("{packets} samples, {flows} flows, {current_flows} of them in the cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_report_says() {
        let status = |failed, error: Option<&str>| {
            let (target, error) = ("10.0.0.1:6343".parse().unwrap(), error.map(str::to_owned));
            Status { target, sent: 3, failed, refused: 0, error }
        };
        let collectors = vec![status(0, None), status(2, Some("no way"))];
        let mut text = String::new();
        describe(&mut text, &Report { bridge: 0, what: What::Sflow { samples: 9 }, collectors });
        let statistics = Statistics { flows: 4, current_flows: 1, packets: 8, ..Statistics::default() };
        let collectors = Vec::new();
        describe(&mut text, &Report { bridge: 0, what: What::CollectorSet(7, statistics), collectors });
        let expected = [
            "  sFlow: 9 samples",
            "    10.0.0.1:6343: 3 datagrams sent, 0 not sent, 0 refused",
            "    10.0.0.1:6343: 3 datagrams sent, 2 not sent, 0 refused; no way",
            "  IPFIX, collector set 7: 8 samples, 4 flows, 1 of them in the cache",
            "",
        ];
        assert_eq!(text, expected.join("\n"));
    }
}
