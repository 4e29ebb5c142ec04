//! Samples: `sFlow(vid=0,pcp=0,output=5)`, `ipfix(output_port=2)`, `flow_sample(probability=65535,...)`.

use packet::put;

use super::Error;
use super::argument::argument;
use crate::action::{IpfixPunt, SflowPunt};

/// What is shown for no port.
const NO_PORT: u32 = u32::MAX;

/// `userspace(...)` for sFlow. In OVS its receiver gets the flow's actions, too, and the text says so.
pub fn format_sflow(out: &mut String, punt: &SflowPunt) {
    let (vid, pcp) = (punt.vlan_tci & 0xfff, punt.vlan_tci >> 13);
    put!(out, "userspace(pid=0,sFlow(vid={vid},pcp={pcp},output={}),actions)", punt.output);
}

/// `userspace(...)` for IPFIX.
pub fn format_ipfix(out: &mut String, punt: &IpfixPunt) {
    let output = punt.output.map_or(NO_PORT, |port| port.0);
    match &punt.flow {
        None => put!(out, "userspace(pid=0,ipfix(output_port={output})"),
        Some(flow) => {
            let (probability, set) = (flow.probability, flow.collector_set);
            let (domain, point) = (flow.obs_domain, flow.obs_point);
            put!(out, "userspace(pid=0,flow_sample(probability={probability},collector_set_id={set},");
            put!(out, "obs_domain_id={domain},obs_point_id={point},output_port={output}");
            out.push_str(match flow.is_egress {
                None => ")",
                Some(false) => ",ingress)",
                Some(true) => ",egress)",
            });
        }
    }
    if let Some(port) = punt.tunnel_port {
        put!(out, ",tunnel_out_port={}", port.0);
    }
    out.push(')');
}

/// A percentage, as a part of `u32::MAX`.
pub fn parse_percent(text: &str) -> Result<u32, Error> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match percent {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok((percent / 100.0 * f64::from(u32::MAX)).round() as u32),
        _ => Err(argument("sample", text, "a percentage from 0% to 100%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Action, FlowSample, PortNo};
    use crate::text::{Context, parse_actions};
    use packet::flow::text::NoNames;

    fn text(actions: &[Action]) -> String {
        let mut out = String::new();
        crate::text::format_actions(&mut out, actions, &packet::Key::new(), &Context::default());
        out
    }

    fn punt(punt: crate::Punt) -> Action {
        Action::Punt(std::sync::Arc::new(punt))
    }

    #[test]
    fn samples_read_as_in_ovs() {
        let sflow = SflowPunt { bridge: 1, vlan_tci: 0xf009, output: 10, tunnel: None, mpls: Vec::new() };
        let sflow = punt(crate::Punt::Sflow(sflow));
        let expected = "userspace(pid=0,sFlow(vid=9,pcp=7,output=10),actions)";
        assert_eq!(text(std::slice::from_ref(&sflow)), expected);
        let half = Action::Sample { probability: u32::MAX / 2, actions: vec![sflow] };
        assert_eq!(text(&[half]), format!("sample(sample=50.0%,actions({expected}))"));
        let ipfix =
            IpfixPunt { bridge: 1, flow: None, output: None, tunnel_port: None, tunnel: None, is_forwarded: true };
        let of = |ipfix: IpfixPunt| text(&[punt(crate::Punt::Ipfix(ipfix))]);
        assert_eq!(of(ipfix.clone()), "userspace(pid=0,ipfix(output_port=4294967295))");
        let out = Some(PortNo(2));
        let through = IpfixPunt { output: out, tunnel_port: out, ..ipfix.clone() };
        assert_eq!(of(through), "userspace(pid=0,ipfix(output_port=2),tunnel_out_port=2)");
        let flow =
            FlowSample { probability: 65535, collector_set: 1, obs_domain: 2, obs_point: 3, is_egress: Some(true) };
        let expected = "userspace(pid=0,flow_sample(probability=65535,collector_set_id=1,obs_domain_id=2,\
                        obs_point_id=3,output_port=2,egress))";
        assert_eq!(of(IpfixPunt { flow: Some(flow), output: out, ..ipfix }), expected);
    }

    #[test]
    fn a_sample_of_other_actions_is_parsed() {
        let parsed = parse_actions("sample(sample=12.5%,actions(1,2)),3", &NoNames).unwrap();
        let Action::Sample { probability, actions } = &parsed[0] else { panic!("{parsed:?}") };
        assert_eq!((*probability, actions.len()), (u32::MAX / 8 + 1, 2));
        assert_eq!(text(&parsed), "sample(sample=12.5%,actions(1,2)),3");
        for bad in ["sample(actions(1))", "sample(sample=101%,actions(1))", "sample(sample=nan%)", "sample(sample=5)"] {
            assert!(parse_actions(bad, &NoNames).is_err(), "{bad}");
        }
    }
}
