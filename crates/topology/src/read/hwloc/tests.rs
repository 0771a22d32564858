use super::*;
use crate::model::NicKind;

/// Two nodes of two CPUs; one thread may not be used
const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" allowed_cpuset="0x00000007" nodeset="0x00000003">
    <info name="HostName" value="small"/>
    <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000001">
      <info name="CPUModel" value="A CPU"/>
      <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" local_memory="1024"/>
      <object type="L2Cache" cpuset="0x00000003" cache_size="512">
        <object type="Core" os_index="0" cpuset="0x00000003">
          <object type="PU" os_index="0"/>
          <object type="PU" os_index="1"/>
        </object>
      </object>
      <object type="Bridge" bridge_type="0-1" bridge_pci="0000:[17-18]">
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:17:00.0" bridge_pci="0000:[18-18]">
          <object type="PCIDev" pci_busid="0000:18:00.0" pci_type="0207 [15b3:1017]">
            <object type="OSDev" name="ib0" osdev_type="2">
              <info name="Address" value="00:01:02:03:04:05:06:07:08:09:0a:0b:0c:0d:0e:0f:10:11:12:13"/>
            </object>
            <object type="OSDev" name="mlx5_0" osdev_type="3"><info name="Port1State" value="1"/></object>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" nodeset="0x00000002">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" local_memory="2048"/>
      <object type="Core" os_index="0" cpuset="0x00000004"><object type="PU" os_index="2"/></object>
      <object type="Core" os_index="1" cpuset="0x00000008"><object type="PU" os_index="3"/></object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">1 0 </indexes>
    <u64values length="12">10 21 20 </u64values><u64values length="3">10 </u64values>
  </distances2>
</topology>"#;

fn error_of(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

#[test]
fn objects_become_a_machine() {
    let machine = parse(XML).expect("a topology");
    assert_eq!(machine.name, "small");
    assert_eq!(machine.cpu_model, "A CPU");
    assert_eq!(machine.online_cpus.to_string(), "0-3");
    assert_eq!(machine.allowed_cpus.to_string(), "0-2");
    assert_eq!(machine.memory_bytes, Some(3072));
    let packages: Vec<u32> = machine.cores.iter().map(|core| core.package).collect();
    assert_eq!(packages, [0, 1, 1]);
    assert_eq!(machine.l3_domains.len(), 1);
}

#[test]
fn distances_are_in_the_order_of_the_nodes() {
    let machine = parse(XML).expect("a topology");
    assert_eq!(machine.nodes[0].distances, [10, 20]);
    assert_eq!(machine.nodes[1].distances, [21, 10]);
}

#[test]
fn a_device_is_below_its_bridges_and_near_its_package() {
    let machine = parse(XML).expect("a topology");
    let nic = &machine.nics[0];
    assert_eq!(
        nic.place.pci_path,
        ["pci0000:17", "0000:17:00.0", "0000:18:00.0"]
    );
    assert_eq!(nic.place.node, Some(0));
    assert_eq!(nic.place.cpus.to_string(), "0-1");
    assert_eq!(nic.kind, NicKind::Infiniband);
    assert_eq!(nic.rdma.as_deref(), Some("mlx5_0"));
    // Its port is down
    assert_eq!(machine.rdma[0].active, Some(false));
    assert!(!nic.up);
}

#[test]
fn what_is_no_topology_is_refused() {
    assert!(error_of("<a>").contains("not XML"));
    assert!(error_of("<html/>").contains("\"html\""));
    let old = error_of("<topology><object type=\"System\"/></topology>");
    assert!(old.contains("export it anew"), "{old}");
    assert!(error_of("<topology version=\"4.0\"/>").contains("\"4.0\""));
    assert!(error_of("<topology version=\"2.0\"/>").contains("without hardware threads"));
}

#[test]
fn a_bad_attribute_is_named_with_its_line() {
    let error = error_of(&XML.replace("local_memory=\"2048\"", "local_memory=\"much\""));
    assert_eq!(
        error,
        "line 27: local_memory of NUMANode is \"much\", expected a number"
    );
    for (good, wrong) in [
        ("cpuset=\"0x0000000c\"", "cpuset=\"12-13\""),
        ("PU\" os_index=\"3\"", "PU\" os_index=\"99999999\""),
        ("PU\" os_index=\"3\"", "PU\""),
        ("osdev_type=\"2\"", "osdev_type=\"net\""),
    ] {
        let error = parse(&XML.replace(good, wrong)).expect_err(wrong);
        assert!(matches!(error, HwlocError::BadAttribute { .. }), "{error}");
    }
}

#[test]
fn a_set_without_end_is_none() {
    let machine = parse(&XML.replace(
        "allowed_cpuset=\"0x00000007\"",
        "allowed_cpuset=\"0xf...f\"",
    ));
    assert_eq!(machine.expect("a topology").allowed_cpus.to_string(), "0-3");
}

#[test]
fn deep_nesting_is_an_error_and_no_crash() {
    let deep = format!(
        "<topology version=\"2.0\">{}{}</topology>",
        "<object type=\"Group\">".repeat(100_000),
        "</object>".repeat(100_000)
    );
    assert!(parse(&deep).is_err());
}
