"""Maps section and metric labels of the details page to ncu section and metric names.

Taken from reports of ncu 2025.3 through the module ``ncu_report`` (the label of each metric in a section's header), and
from the section files of older versions for what was called otherwise.
"""

from __future__ import annotations

from typing import Final

#: Section identifiers, as for `ncu --section`, by the name printed on the details page.
SECTIONS: Final = {
    "GPU Speed Of Light Throughput": "SpeedOfLight",
    "GPU Speed Of Light": "SpeedOfLight",
    "GPU Speed Of Light Roofline Chart": "SpeedOfLight_RooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)": "SpeedOfLight_HierarchicalDoubleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)": "SpeedOfLight_HierarchicalHalfRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)": "SpeedOfLight_HierarchicalSingleRooflineChart",
    "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)": "SpeedOfLight_HierarchicalTensorRooflineChart",
    "PM Sampling": "PmSampling",
    "Compute Workload Analysis": "ComputeWorkloadAnalysis",
    "Memory Workload Analysis": "MemoryWorkloadAnalysis",
    "Memory Workload Analysis Chart": "MemoryWorkloadAnalysis_Chart",
    "Memory Workload Analysis Tables": "MemoryWorkloadAnalysis_Tables",
    "Scheduler Statistics": "SchedulerStats",
    "Warp State Statistics": "WarpStateStats",
    "Instruction Statistics": "InstructionStats",
    "NVLink Topology": "Nvlink_Topology",
    "NVLink Tables": "Nvlink_Tables",
    "NUMA Affinity": "NumaAffinity",
    "Launch Statistics": "LaunchStats",
    "Occupancy": "Occupancy",
    "Source Counters": "SourceCounters",
    "GPU and Memory Workload Distribution": "WorkloadDistribution",
}

#: Metric names by section and label, including labels of older versions.
LABELS: Final = {
    "SpeedOfLight": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    },
    "PmSampling": {
        "# Pass Groups": "profiler__pmsampler_pass_groups",
        "Maximum Buffer Size": "profiler__pmsampler_buffer_size_bytes",
        "Maximum Sampling Interval": "profiler__pmsampler_interval_time",
    },
    "ComputeWorkloadAnalysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_elapsed",
    },
    "MemoryWorkloadAnalysis": {
        "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Compression Input Sectors": "lrc__ilc_input_sectors.sum",
        "L2 Compression Ratio": "lrc__average_ilc_output_sector_compression_achieved_rate.pct",
        "L2 Compression Success Rate": "lrc__average_ilc_input_sector_success_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Persisting Size": "launch__persisting_l2_cache_size",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "dram__bytes.sum.per_second",
    },
    "SchedulerStats": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    },
    "WarpStateStats": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
        "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "InstructionStats": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "LaunchStats": {
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
        "Block Size": "launch__block_size",
        "Cluster Scheduling Policy": "launch__cluster_scheduling_policy",
        "Cluster Size": "launch__cluster_size",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Enabled TPC IDs": "launch__tpc_enabled",
        "Function Cache Configuration": "launch__func_cache_config",
        "Grid Size": "launch__grid_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Stack Size": "launch__stack_size",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Threads": "launch__thread_count",
        "Uses Green Context": "launch__uses_green_context",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "Occupancy": {
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    },
    "SourceCounters": {
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    },
    "WorkloadDistribution": {
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
        "Average L1 Active Cycles": "l1tex__cycles_active.avg",
        "Average L2 Active Cycles": "lts__cycles_active.avg",
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average SMSP Active Cycles": "smsp__cycles_active.avg",
        "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
        "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
        "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
    },
}

#: The section of each metric: the first one that prints it.
SECTION_OF: Final = {
    "lts__average_gcomp_input_sector_success_rate.pct": "MemoryWorkloadAnalysis",
    "lts__average_gcomp_output_sector_compression_achieved_rate.ratio": "MemoryWorkloadAnalysis",
} | {metric: section for section, labels in reversed(LABELS.items()) for metric in labels.values()}
