from kvtransfer.topology import Device, ucx_environment


def test_cpu_workers_hand_over_by_tcp():
    assert ucx_environment(Device.CPU)["UCX_TLS"] == "tcp"


def test_gpu_workers_leave_the_transport_to_ucx():
    assert "UCX_TLS" not in ucx_environment(Device.CUDA)


def test_every_device_bounds_the_registration_cache():
    for device in Device:
        assert ucx_environment(device)["UCX_RCACHE_MAX_UNRELEASED"] == "1024"
