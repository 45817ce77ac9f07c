/* The structs of the header are where compiled programs and the bindings expect them, and its numbers never change. A
 * change that breaks a line here breaks users: raise LW_ABI_VERSION, and only then this file. */
#include <laneway.h>
#include <laneway.h> /* twice on purpose */

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), "sizeof " #type)
#define NUMBER(name, value) _Static_assert((name) == (value), #name)

_Static_assert(sizeof(void *) == 8, "the offsets below are those of 64-bit machines");

SIZE(lw_tensor_spec, 24);
AT(lw_tensor_spec, name, 0);
AT(lw_tensor_spec, shape, 8);
AT(lw_tensor_spec, ndim, 16);
AT(lw_tensor_spec, dtype, 20);

SIZE(lw_tensor, 48);
AT(lw_tensor, data, 0);
AT(lw_tensor, shape, 8);
AT(lw_tensor, name, 16);
AT(lw_tensor, nbytes, 24);
AT(lw_tensor, ndim, 32);
AT(lw_tensor, dtype, 36);
AT(lw_tensor, device_type, 40);
AT(lw_tensor, device_id, 44);

SIZE(lw_medium_table, 104);
AT(lw_medium_table, struct_size, 0);
AT(lw_medium_table, user, 8);
AT(lw_medium_table, drop, 16);
AT(lw_medium_table, kind, 24);
AT(lw_medium_table, buf_name, 32);
AT(lw_medium_table, slot_count, 40);
AT(lw_medium_table, slot_stride, 48);
AT(lw_medium_table, read, 56);
AT(lw_medium_table, write, 64);
AT(lw_medium_table, slot, 72);
AT(lw_medium_table, reserve, 80);
AT(lw_medium_table, share, 88);
AT(lw_medium_table, unlink, 96);

SIZE(lw_attach_table, 40);
AT(lw_attach_table, struct_size, 0);
AT(lw_attach_table, user, 8);
AT(lw_attach_table, drop, 16);
AT(lw_attach_table, kind, 24);
AT(lw_attach_table, attach, 32);

SIZE(lw_endpoints, 32);
AT(lw_endpoints, frontend, 0);
AT(lw_endpoints, backend, 8);
AT(lw_endpoints, control, 16);
AT(lw_endpoints, control_pub, 24);

SIZE(lw_broker_options, 48);
AT(lw_broker_options, struct_size, 0);
AT(lw_broker_options, endpoints, 8);
AT(lw_broker_options, exit_when_idle_ms, 40);

SIZE(lw_student_options, 120);
AT(lw_student_options, struct_size, 0);
AT(lw_student_options, endpoints, 8);
AT(lw_student_options, group, 40);
AT(lw_student_options, layout, 48);
AT(lw_student_options, medium, 56);
AT(lw_student_options, seed, 64);
AT(lw_student_options, rank, 72);
AT(lw_student_options, role, 76);
AT(lw_student_options, data_worker, 80);
AT(lw_student_options, data_workers, 84);
AT(lw_student_options, slot_count, 88);
AT(lw_student_options, prefetch, 92);
AT(lw_student_options, max_workers, 96);
AT(lw_student_options, max_batch, 100);
AT(lw_student_options, max_attempts, 104);
AT(lw_student_options, spin_us, 108);
AT(lw_student_options, arrival_order, 112);
AT(lw_student_options, embedded_broker, 116);

SIZE(lw_sample, 72);
AT(lw_sample, data, 0);
AT(lw_sample, nbytes, 8);
AT(lw_sample, lane, 16);
AT(lw_sample, step, 24);
AT(lw_sample, seed, 32);
AT(lw_sample, generation, 40);
AT(lw_sample, position, 48);
AT(lw_sample, serial, 56);
AT(lw_sample, slot, 64);
AT(lw_sample, flags, 68);

SIZE(lw_worker_options, 88);
AT(lw_worker_options, struct_size, 0);
AT(lw_worker_options, endpoints, 8);
AT(lw_worker_options, layout, 40);
AT(lw_worker_options, attach, 48);
AT(lw_worker_options, attach_count, 56);
AT(lw_worker_options, slot_size, 64);
AT(lw_worker_options, worker_id, 72);
AT(lw_worker_options, batch_size, 80);
AT(lw_worker_options, spin_us, 84);

SIZE(lw_task, 104);
AT(lw_task, data, 0);
AT(lw_task, capacity, 8);
AT(lw_task, id, 16);
AT(lw_task, lane, 24);
AT(lw_task, step, 32);
AT(lw_task, seed, 40);
AT(lw_task, generation, 48);
AT(lw_task, model_id, 56);
AT(lw_task, model_id_len, 64);
AT(lw_task, model_config, 72);
AT(lw_task, model_config_len, 80);
AT(lw_task, layout, 88);
AT(lw_task, attempt, 96);

SIZE(lw_status, 4);
NUMBER(LW_OK, 0);
NUMBER(LW_INVALID_ARGUMENT, 1001);
NUMBER(LW_TIMEOUT, 1002);
NUMBER(LW_INTERRUPTED, 1003);
NUMBER(LW_FORKED, 1004);
NUMBER(LW_PEER_DEAD, 1005);
NUMBER(LW_CLOSED, 1006);
NUMBER(LW_PANIC, 1007);
NUMBER(LW_ABI_MISMATCH, 1008);
NUMBER(LW_NO_MEMORY, 1009);
NUMBER(LW_IO, 1010);
NUMBER(LW_REFUSED, 1011);
NUMBER(LW_LAYOUT_MISMATCH, 1012);
NUMBER(LW_TASK_FAILED, 1013);
NUMBER(LW_CORRUPT, 1014);
NUMBER(LW_UNSUPPORTED, 1015);
NUMBER(LW_IN_USE, 1016);
NUMBER(LW_NOT_LEADER, 1017);
NUMBER(LW_STALE, 1018);
NUMBER(LW_NOT_FOUND, 1019);
NUMBER(LW_DATA, 1020);

NUMBER(LW_FLOAT64, 1);
NUMBER(LW_FLOAT32, 2);
NUMBER(LW_FLOAT16, 3);
NUMBER(LW_BFLOAT16, 4);
NUMBER(LW_INT64, 5);
NUMBER(LW_INT32, 6);
NUMBER(LW_INT16, 7);
NUMBER(LW_INT8, 8);
NUMBER(LW_UINT8, 9);
NUMBER(LW_BOOL, 10);
NUMBER(LW_DEVICE_CPU, 1);
NUMBER(LW_ROLE_CLIENT, 0);
NUMBER(LW_ROLE_DATASET, 1);
NUMBER(LW_SAMPLE_COPIED, 1);
NUMBER(LW_SPIN_ADAPTIVE, 0xFFFFFFFFu);
NUMBER(LW_NEVER, INT64_MAX);

int main(void) { return lw_abi_version() == LW_ABI_VERSION ? 0 : 1; }
