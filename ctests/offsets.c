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
AT(lw_medium_table, reserved, 44);
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

SIZE(lw_student_options, 128);
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
AT(lw_student_options, input, 120);

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

SIZE(lw_worker_options, 96);
AT(lw_worker_options, struct_size, 0);
AT(lw_worker_options, endpoints, 8);
AT(lw_worker_options, layout, 40);
AT(lw_worker_options, attach, 48);
AT(lw_worker_options, attach_count, 56);
AT(lw_worker_options, slot_size, 64);
AT(lw_worker_options, worker_id, 72);
AT(lw_worker_options, batch_size, 80);
AT(lw_worker_options, spin_us, 84);
AT(lw_worker_options, device, 88);
AT(lw_worker_options, reserved, 92);

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
AT(lw_task, flags, 100);

SIZE(lw_dataset_options, 104);
AT(lw_dataset_options, struct_size, 0);
AT(lw_dataset_options, name, 8);
AT(lw_dataset_options, paths, 16);
AT(lw_dataset_options, path_count, 24);
AT(lw_dataset_options, format, 32);
AT(lw_dataset_options, text_field, 40);
AT(lw_dataset_options, text_unit, 48);
AT(lw_dataset_options, on_error, 56);
AT(lw_dataset_options, cache_dir, 64);
AT(lw_dataset_options, threads, 72);
AT(lw_dataset_options, memory_budget, 80);
AT(lw_dataset_options, progress, 88);
AT(lw_dataset_options, progress_user, 96);

SIZE(lw_shard, 64);
AT(lw_shard, path, 0);
AT(lw_shard, name, 8);
AT(lw_shard, format, 16);
AT(lw_shard, damage, 24);
AT(lw_shard, size, 32);
AT(lw_shard, fingerprint, 40);
AT(lw_shard, first_document, 48);
AT(lw_shard, documents, 56);

SIZE(lw_group, 24);
AT(lw_group, first_document, 0);
AT(lw_group, bytes, 8);
AT(lw_group, documents, 16);
AT(lw_group, shard, 20);

SIZE(lw_location, 16);
AT(lw_location, number, 0);
AT(lw_location, shard, 8);
AT(lw_location, is_row, 12);

SIZE(lw_batch_info, 72);
AT(lw_batch_info, step, 0);
AT(lw_batch_info, microbatch, 8);
AT(lw_batch_info, microbatches, 16);
AT(lw_batch_info, rows, 24);
AT(lw_batch_info, row_length, 32);
AT(lw_batch_info, segments, 40);
AT(lw_batch_info, num_tokens, 48);
AT(lw_batch_info, num_valid_tokens, 56);
AT(lw_batch_info, max_seqlen, 64);

SIZE(lw_row, 24);
AT(lw_row, number, 0);
AT(lw_row, position, 8);
AT(lw_row, lane, 16);
AT(lw_row, segments, 20);

SIZE(lw_segment, 32);
AT(lw_segment, document, 0);
AT(lw_segment, dataset, 8);
AT(lw_segment, shard, 12);
AT(lw_segment, row, 16);
AT(lw_segment, offset, 20);
AT(lw_segment, start, 24);
AT(lw_segment, length, 28);

SIZE(lw_function_table, 48);
AT(lw_function_table, struct_size, 0);
AT(lw_function_table, user, 8);
AT(lw_function_table, drop, 16);
AT(lw_function_table, name, 24);
AT(lw_function_table, map, 32);
AT(lw_function_table, filter, 40);

SIZE(lw_piece, 40);
AT(lw_piece, number, 0);
AT(lw_piece, document, 8);
AT(lw_piece, dataset, 16);
AT(lw_piece, lane, 20);
AT(lw_piece, start, 24);
AT(lw_piece, length, 28);
AT(lw_piece, tokens, 32);

SIZE(lw_operator_table, 80);
AT(lw_operator_table, struct_size, 0);
AT(lw_operator_table, user, 8);
AT(lw_operator_table, drop, 16);
AT(lw_operator_table, name, 24);
AT(lw_operator_table, open, 32);
AT(lw_operator_table, close, 40);
AT(lw_operator_table, push, 48);
AT(lw_operator_table, flush, 56);
AT(lw_operator_table, save, 64);
AT(lw_operator_table, load, 72);

SIZE(lw_generate_options, 80);
AT(lw_generate_options, struct_size, 0);
AT(lw_generate_options, endpoints, 8);
AT(lw_generate_options, group, 40);
AT(lw_generate_options, connect_ms, 48);
AT(lw_generate_options, window, 56);
AT(lw_generate_options, max_workers, 60);
AT(lw_generate_options, max_attempts, 64);
AT(lw_generate_options, spin_us, 68);
AT(lw_generate_options, embedded_broker, 72);
AT(lw_generate_options, rows_only, 76);

SIZE(lw_loader_options, 120);
AT(lw_loader_options, struct_size, 0);
AT(lw_loader_options, rank, 8);
AT(lw_loader_options, ranks, 12);
AT(lw_loader_options, microbatch_size, 16);
AT(lw_loader_options, uneven, 24);
AT(lw_loader_options, threads, 28);
AT(lw_loader_options, prefetch, 32);
AT(lw_loader_options, cache_dir, 40);
AT(lw_loader_options, memory_budget, 48);
AT(lw_loader_options, task_bytes, 56);
AT(lw_loader_options, functions, 64);
AT(lw_loader_options, function_count, 72);
AT(lw_loader_options, progress, 80);
AT(lw_loader_options, progress_user, 88);
AT(lw_loader_options, operators, 96);
AT(lw_loader_options, operator_count, 104);
AT(lw_loader_options, generate, 112);

SIZE(lw_ticket, 16);
AT(lw_ticket, lane, 0);
AT(lw_ticket, step, 8);

SIZE(lw_state, 16);
AT(lw_state, data, 0);
AT(lw_state, len, 8);

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
NUMBER(LW_DEVICE_CUDA, 2);
NUMBER(LW_ROLE_CLIENT, 0);
NUMBER(LW_ROLE_DATASET, 1);
NUMBER(LW_SAMPLE_COPIED, 1);
NUMBER(LW_ON_DEVICE, 2);
NUMBER(LW_STREAM_LEGACY, 1);
NUMBER(LW_STREAM_PER_THREAD, 2);
NUMBER(LW_FALLBACK_NONE, 0);
NUMBER(LW_FALLBACK_SHM, 1);
NUMBER(LW_MAKE_IN_HOST_MEMORY, -1);
NUMBER(LW_MAKE_ON_STUDENTS_DEVICE, -2);
NUMBER(LW_SPIN_ADAPTIVE, 0xFFFFFFFFu);
NUMBER(LW_NEVER, INT64_MAX);
NUMBER(LW_NO_LANE, 0xFFFFFFFFu);
NUMBER(LW_THREADS_ALL, 0xFFFFFFFFu);
NUMBER(LW_ENDLESS, UINT64_MAX);

SIZE(lw_server_options, 48);
AT(lw_server_options, struct_size, 0);
AT(lw_server_options, name, 8);
AT(lw_server_options, loader, 16);
AT(lw_server_options, ranks, 24);
AT(lw_server_options, local_ranks, 28);
AT(lw_server_options, peers, 32);
AT(lw_server_options, slots, 36);
AT(lw_server_options, exit_when_idle_ms, 40);

SIZE(lw_connect_options, 64);
AT(lw_connect_options, struct_size, 0);
AT(lw_connect_options, name, 8);
AT(lw_connect_options, rank, 16);
AT(lw_connect_options, ranks, 20);
AT(lw_connect_options, microbatch_size, 24);
AT(lw_connect_options, uneven, 32);
AT(lw_connect_options, peers, 36);
AT(lw_connect_options, spin_us, 40);
AT(lw_connect_options, patience_ms, 44);
AT(lw_connect_options, progress, 48);
AT(lw_connect_options, progress_user, 56);

int main(void) { return lw_abi_version() == LW_ABI_VERSION ? 0 : 1; }
