
%union.lock_t = type { %union.pthread_cond_t, [80 x i8] }
%union.pthread_cond_t = type { %struct.__pthread_cond_s }
%struct.__pthread_cond_s = type { %union.__atomic_wide_counter, %union.__atomic_wide_counter, [2 x i32], [2 x i32], i32, i32, [2 x i32] }
%union.__atomic_wide_counter = type { i64 }
%struct.group_t = type { ptr, i32 }
%struct.cpu_set_t = type { [16 x i64] }
%struct.anon.0 = type { ptr, ptr, %struct.group_t, i32, i32, i32 }
%struct.share_t = type { i64, [56 x i8] }
%struct.any_t = type { i32, i32, i64 }
%struct.timespec = type { i64, i64 }

@this_library = internal global i8 0, align 1
@stopping = internal unnamed_addr global i32 0, align 4
@threads = internal unnamed_addr global i32 0, align 4
@workers = internal global [128 x i64] zeroinitializer, align 16
@most_threads = internal unnamed_addr global i32 128, align 4
@asked_threads = internal unnamed_addr global i32 0, align 4
@autotune_next_extent = hidden local_unnamed_addr global i32 0, align 4
@taken = internal global i32 0, align 64
@__TVMBackendParallelLaunch = hidden local_unnamed_addr global ptr @autotune_parallel, align 8
@generation = internal global i32 0, align 64
@sleepers = internal global i32 0, align 64
@lock = internal global %union.lock_t zeroinitializer, align 64
@job_came = internal global %union.lock_t zeroinitializer, align 64
@__const.alone.group = private unnamed_addr constant %struct.group_t { ptr null, i32 1 }, align 8
@start.registered = internal unnamed_addr global i1 false, align 1
@job_ended = internal global %union.lock_t zeroinitializer, align 64
@.str = private unnamed_addr constant [16 x i8] c"TVM_NUM_THREADS\00", align 1
@usable = internal global %struct.cpu_set_t zeroinitializer, align 8
@.str.1 = private unnamed_addr constant [23 x i8] c"/sys/fs/cgroup/cpu.max\00", align 1
@job = internal global %struct.anon.0 zeroinitializer, align 8
@shares = internal global [128 x %struct.share_t] zeroinitializer, align 64
@failure = internal unnamed_addr global i32 0, align 4
@finished = internal global i32 0, align 64
@caller_sleeps = internal unnamed_addr global i32 0, align 4
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @autotune_stop_threads, ptr null }]

; Function Attrs: nounwind uwtable
define hidden void @autotune_stop_threads() #0 {
  tail call void @__cxa_finalize(ptr noundef nonnull @this_library) #12
  store atomic i32 1, ptr @stopping seq_cst, align 4
  %1 = load i32, ptr @threads, align 4, !tbaa !3
  %2 = icmp sgt i32 %1, 1
  br i1 %2, label %3, label %14

3:                                                ; preds = %0
  %4 = atomicrmw add ptr @generation, i32 1 seq_cst, align 4
  %5 = load atomic i32, ptr @sleepers seq_cst, align 64
  %6 = icmp eq i32 %5, 0
  br i1 %6, label %11, label %7

7:                                                ; preds = %3
  %8 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #12
  %9 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #12
  %10 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #12
  br label %11

11:                                               ; preds = %7, %3
  %12 = load i32, ptr @threads, align 4, !tbaa !3
  %13 = icmp sgt i32 %12, 1
  br i1 %13, label %15, label %14

14:                                               ; preds = %15, %0, %11
  ret void

15:                                               ; preds = %11, %15
  %16 = phi i64 [ %20, %15 ], [ 1, %11 ]
  %17 = getelementptr inbounds [128 x i64], ptr @workers, i64 0, i64 %16
  %18 = load i64, ptr %17, align 8, !tbaa !7
  %19 = tail call i32 @pthread_join(i64 noundef %18, ptr noundef null) #12
  %20 = add nuw nsw i64 %16, 1
  %21 = load i32, ptr @threads, align 4, !tbaa !3
  %22 = sext i32 %21 to i64
  %23 = icmp slt i64 %20, %22
  br i1 %23, label %15, label %14, !llvm.loop !9
}

declare void @__cxa_finalize(ptr noundef) local_unnamed_addr #1

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.start.p0(i64 immarg, ptr nocapture) #2

declare i32 @pthread_join(i64 noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite)
declare void @llvm.lifetime.end.p0(i64 immarg, ptr nocapture) #2

; Function Attrs: mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) uwtable
define hidden void @autotune_limit(i32 noundef %0) local_unnamed_addr #3 {
  store atomic i32 %0, ptr @most_threads monotonic, align 4
  ret void
}

; Function Attrs: mustprogress nofree norecurse nounwind willreturn memory(readwrite, inaccessiblemem: none) uwtable
define i32 @__tvm_ffi_autotune_threads(ptr nocapture noundef readnone %0, ptr nocapture noundef readonly %1, i32 noundef %2, ptr nocapture noundef writeonly %3) local_unnamed_addr #4 {
  %5 = icmp eq i32 %2, 1
  br i1 %5, label %6, label %13

6:                                                ; preds = %4
  %7 = load i32, ptr %1, align 8, !tbaa !11
  %8 = icmp eq i32 %7, 1
  br i1 %8, label %9, label %13

9:                                                ; preds = %6
  %10 = getelementptr inbounds %struct.any_t, ptr %1, i64 0, i32 2
  %11 = load i64, ptr %10, align 8, !tbaa !13
  %12 = trunc i64 %11 to i32
  store atomic i32 %12, ptr @asked_threads seq_cst, align 4
  br label %13

13:                                               ; preds = %9, %6, %4
  tail call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %3, i8 0, i64 16, i1 false)
  ret i32 0
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #5

; Function Attrs: nounwind uwtable
define hidden i32 @autotune_parallel(ptr noundef %0, ptr noundef %1, i32 noundef %2) #0 {
  %4 = alloca %struct.group_t, align 8
  %5 = alloca %struct.timespec, align 8
  %6 = alloca %struct.group_t, align 8
  %7 = load atomic i32, ptr @autotune_next_extent monotonic, align 4
  store atomic i32 0, ptr @autotune_next_extent monotonic, align 4
  %8 = icmp eq i32 %7, 1
  %9 = icmp eq i32 %2, 1
  %10 = or i1 %9, %8
  br i1 %10, label %14, label %11

11:                                               ; preds = %3
  %12 = atomicrmw xchg ptr @taken, i32 1 acquire, align 4
  %13 = icmp eq i32 %12, 0
  br i1 %13, label %16, label %14

14:                                               ; preds = %11, %3
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %6) #12
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %6, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %15 = call i32 %0(i32 noundef 0, ptr noundef nonnull %6, ptr noundef %1) #12
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %6) #12
  br label %163

16:                                               ; preds = %11
  %17 = load i32, ptr @threads, align 4, !tbaa !3
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %19, label %68

19:                                               ; preds = %16
  %20 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @lock, ptr noundef null) #12
  %21 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_came, ptr noundef null) #12
  %22 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_ended, ptr noundef null) #12
  store atomic i32 0, ptr @generation seq_cst, align 64
  %23 = load i1, ptr @start.registered, align 1
  br i1 %23, label %26, label %24

24:                                               ; preds = %19
  %25 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_workers, ptr noundef nonnull @this_library) #12
  br label %26

26:                                               ; preds = %24, %19
  store i1 true, ptr @start.registered, align 1
  %27 = tail call ptr @getenv(ptr noundef nonnull @.str) #12
  %28 = load atomic i32, ptr @asked_threads seq_cst, align 4
  %29 = icmp eq i32 %28, 0
  %30 = icmp ne ptr %27, null
  %31 = and i1 %30, %29
  br i1 %31, label %32, label %35

32:                                               ; preds = %26
  %33 = tail call i64 @strtol(ptr nocapture noundef nonnull %27, ptr noundef null, i32 noundef 10) #12
  %34 = trunc i64 %33 to i32
  br label %35

35:                                               ; preds = %32, %26
  %36 = phi i32 [ %34, %32 ], [ %28, %26 ]
  %37 = tail call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #12
  %38 = icmp eq i32 %37, 0
  br i1 %38, label %39, label %66

39:                                               ; preds = %35
  %40 = tail call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull @usable) #12
  %41 = tail call fastcc i32 @quota_cpus(i32 noundef %40)
  %42 = icmp slt i32 %41, %40
  br i1 %42, label %43, label %45

43:                                               ; preds = %39
  %44 = tail call fastcc i32 @quota_cpus(i32 noundef %40)
  br label %45

45:                                               ; preds = %43, %39
  %46 = phi i32 [ %44, %43 ], [ %40, %39 ]
  %47 = icmp sgt i32 %36, 0
  %48 = tail call i32 @llvm.smin.i32(i32 %36, i32 %46)
  %49 = select i1 %47, i32 %48, i32 %46
  %50 = tail call i32 @llvm.smax.i32(i32 %49, i32 1)
  %51 = tail call i32 @llvm.smin.i32(i32 %50, i32 128)
  %52 = icmp ugt i32 %51, 1
  br i1 %52, label %53, label %66

53:                                               ; preds = %45
  %54 = zext i32 %51 to i64
  br label %55

55:                                               ; preds = %61, %53
  %56 = phi i64 [ 1, %53 ], [ %62, %61 ]
  %57 = getelementptr inbounds [128 x i64], ptr @workers, i64 0, i64 %56
  %58 = inttoptr i64 %56 to ptr
  %59 = tail call i32 @pthread_create(ptr noundef nonnull %57, ptr noundef null, ptr noundef nonnull @worker, ptr noundef nonnull %58) #12
  %60 = icmp eq i32 %59, 0
  br i1 %60, label %61, label %64

61:                                               ; preds = %55
  %62 = add nuw nsw i64 %56, 1
  %63 = icmp eq i64 %62, %54
  br i1 %63, label %66, label %55, !llvm.loop !14

64:                                               ; preds = %55
  %65 = trunc i64 %56 to i32
  br label %66

66:                                               ; preds = %61, %35, %45, %64
  %67 = phi i32 [ 1, %45 ], [ 1, %35 ], [ %65, %64 ], [ %51, %61 ]
  store i32 %67, ptr @threads, align 4, !tbaa !3
  br label %68

68:                                               ; preds = %66, %16
  %69 = phi i32 [ %67, %66 ], [ %17, %16 ]
  %70 = load atomic i32, ptr @most_threads monotonic, align 4
  %71 = tail call i32 @llvm.smin.i32(i32 %69, i32 %70)
  %72 = icmp sgt i32 %71, 1
  br i1 %72, label %73, label %159

73:                                               ; preds = %68
  %74 = icmp slt i32 %7, 1
  br i1 %74, label %87, label %75

75:                                               ; preds = %73
  %76 = shl nsw i32 %71, 3
  %77 = sdiv i32 %7, %76
  %78 = tail call i32 @llvm.smax.i32(i32 %77, i32 1)
  %79 = add nsw i32 %7, -1
  %80 = add nuw i32 %78, %79
  %81 = udiv i32 %80, %78
  %82 = add i32 %81, %79
  %83 = udiv i32 %82, %81
  %84 = add i32 %83, %79
  %85 = udiv i32 %84, %83
  %86 = icmp sgt i32 %85, 1
  br i1 %86, label %87, label %159

87:                                               ; preds = %73, %75
  %88 = phi i32 [ %85, %75 ], [ %71, %73 ]
  %89 = load atomic i32, ptr @generation monotonic, align 64
  %90 = add i32 %89, 1
  store ptr %0, ptr @job, align 8, !tbaa !15
  store ptr %1, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !19
  store i32 %88, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2, i32 1), align 8, !tbaa !20
  store i32 %88, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3), align 8, !tbaa !21
  store atomic i32 %71, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 4) monotonic, align 4
  %91 = tail call i32 @sched_getcpu() #12
  store atomic i32 %91, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 5) monotonic, align 8
  store atomic i32 0, ptr @finished monotonic, align 64
  store atomic i32 0, ptr @failure monotonic, align 4
  %92 = zext i32 %90 to i64
  %93 = shl nuw i64 %92, 32
  %94 = zext i32 %71 to i64
  br label %139

95:                                               ; preds = %139
  %96 = atomicrmw add ptr @generation, i32 1 seq_cst, align 4
  %97 = load atomic i32, ptr @sleepers seq_cst, align 64
  %98 = icmp eq i32 %97, 0
  br i1 %98, label %103, label %99

99:                                               ; preds = %95
  %100 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #12
  %101 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #12
  %102 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #12
  br label %103

103:                                              ; preds = %99, %95
  tail call fastcc void @work(i32 noundef 0, i32 noundef %90)
  %104 = load atomic i32, ptr @finished acquire, align 64
  %105 = icmp eq i32 %104, %88
  br i1 %105, label %155, label %106

106:                                              ; preds = %103
  %107 = getelementptr inbounds %struct.timespec, ptr %5, i64 0, i32 1
  br label %108

108:                                              ; preds = %126, %106
  %109 = phi i64 [ 0, %106 ], [ %127, %126 ]
  %110 = phi i32 [ 1, %106 ], [ %128, %126 ]
  call void @autotune_spin_hint() #12
  %111 = load atomic i32, ptr @finished acquire, align 64
  %112 = icmp eq i32 %111, %88
  %113 = and i32 %110, 63
  %114 = icmp ne i32 %113, 0
  %115 = select i1 %112, i1 true, i1 %114
  br i1 %115, label %126, label %116

116:                                              ; preds = %108
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %5) #12
  %117 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %5) #12
  %118 = load i64, ptr %5, align 8, !tbaa !22
  %119 = mul nsw i64 %118, 1000000000
  %120 = load i64, ptr %107, align 8, !tbaa !24
  %121 = add nsw i64 %119, %120
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %5) #12
  %122 = icmp eq i64 %109, 0
  %123 = add nsw i64 %121, 100000
  %124 = select i1 %122, i64 %123, i64 %109
  %125 = icmp sgt i64 %121, %124
  br i1 %125, label %129, label %126

126:                                              ; preds = %116, %108
  %127 = phi i64 [ %109, %108 ], [ %124, %116 ]
  %128 = add nuw nsw i32 %110, 1
  br i1 %112, label %155, label %108, !llvm.loop !25

129:                                              ; preds = %116
  %130 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #12
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  %131 = load atomic i32, ptr @finished seq_cst, align 64
  %132 = icmp eq i32 %131, %88
  br i1 %132, label %137, label %133

133:                                              ; preds = %129, %133
  %134 = call i32 @pthread_cond_wait(ptr noundef nonnull @job_ended, ptr noundef nonnull @lock) #12
  %135 = load atomic i32, ptr @finished seq_cst, align 64
  %136 = icmp eq i32 %135, %88
  br i1 %136, label %137, label %133, !llvm.loop !26

137:                                              ; preds = %133, %129
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  %138 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #12
  br label %155

139:                                              ; preds = %139, %87
  %140 = phi i64 [ 0, %87 ], [ %144, %139 ]
  %141 = trunc i64 %140 to i32
  %142 = mul nsw i32 %88, %141
  %143 = sdiv i32 %142, %71
  %144 = add nuw nsw i64 %140, 1
  %145 = trunc i64 %144 to i32
  %146 = mul nsw i32 %88, %145
  %147 = sdiv i32 %146, %71
  %148 = zext i32 %143 to i64
  %149 = shl nuw nsw i64 %148, 16
  %150 = or i64 %149, %93
  %151 = zext i32 %147 to i64
  %152 = or i64 %150, %151
  %153 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %140
  store atomic i64 %152, ptr %153 release, align 64
  %154 = icmp eq i64 %144, %94
  br i1 %154, label %95, label %139, !llvm.loop !27

155:                                              ; preds = %126, %103, %137
  %156 = load atomic i32, ptr @failure seq_cst, align 4
  %157 = icmp ne i32 %156, 0
  %158 = sext i1 %157 to i32
  br label %161

159:                                              ; preds = %68, %75
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #12
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %4, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %160 = call i32 %0(i32 noundef 0, ptr noundef nonnull %4, ptr noundef %1) #12
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #12
  br label %161

161:                                              ; preds = %159, %155
  %162 = phi i32 [ %158, %155 ], [ %160, %159 ]
  store atomic i32 0, ptr @taken release, align 64
  br label %163

163:                                              ; preds = %161, %14
  %164 = phi i32 [ %15, %14 ], [ %162, %161 ]
  ret i32 %164
}

; Function Attrs: nounwind
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_cond_broadcast(ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_cond_init(ptr noundef, ptr noundef) local_unnamed_addr #6

declare i32 @__register_atfork(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) uwtable
define internal void @forget_workers() #3 {
  store i32 0, ptr @threads, align 4, !tbaa !3
  store atomic i32 0, ptr @taken seq_cst, align 64
  store atomic i32 0, ptr @sleepers seq_cst, align 64
  ret void
}

; Function Attrs: nounwind
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind uwtable
define internal noalias ptr @worker(ptr noundef %0) #0 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = alloca %struct.timespec, align 8
  %4 = ptrtoint ptr %0 to i64
  %5 = trunc i64 %4 to i32
  %6 = getelementptr inbounds %struct.timespec, ptr %3, i64 0, i32 1
  br label %7

7:                                                ; preds = %71, %1
  %8 = phi i32 [ 0, %1 ], [ %45, %71 ]
  %9 = load atomic i32, ptr @generation acquire, align 64
  %10 = icmp eq i32 %9, %8
  br i1 %10, label %11, label %44

11:                                               ; preds = %7, %29
  %12 = phi i64 [ %30, %29 ], [ 0, %7 ]
  %13 = phi i32 [ %31, %29 ], [ 1, %7 ]
  call void @autotune_spin_hint() #12
  %14 = load atomic i32, ptr @generation acquire, align 64
  %15 = icmp ne i32 %14, %8
  %16 = and i32 %13, 63
  %17 = icmp ne i32 %16, 0
  %18 = select i1 %15, i1 true, i1 %17
  br i1 %18, label %29, label %19

19:                                               ; preds = %11
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #12
  %20 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #12
  %21 = load i64, ptr %3, align 8, !tbaa !22
  %22 = mul nsw i64 %21, 1000000000
  %23 = load i64, ptr %6, align 8, !tbaa !24
  %24 = add nsw i64 %22, %23
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #12
  %25 = icmp eq i64 %12, 0
  %26 = add nsw i64 %24, 100000
  %27 = select i1 %25, i64 %26, i64 %12
  %28 = icmp sgt i64 %24, %27
  br i1 %28, label %32, label %29

29:                                               ; preds = %19, %11
  %30 = phi i64 [ %12, %11 ], [ %27, %19 ]
  %31 = add nuw nsw i32 %13, 1
  br i1 %15, label %44, label %11, !llvm.loop !28

32:                                               ; preds = %19
  %33 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #12
  %34 = atomicrmw add ptr @sleepers, i32 1 seq_cst, align 4
  %35 = load atomic i32, ptr @generation seq_cst, align 64
  %36 = icmp eq i32 %35, %8
  br i1 %36, label %37, label %41

37:                                               ; preds = %32, %37
  %38 = call i32 @pthread_cond_wait(ptr noundef nonnull @job_came, ptr noundef nonnull @lock) #12
  %39 = load atomic i32, ptr @generation seq_cst, align 64
  %40 = icmp eq i32 %39, %8
  br i1 %40, label %37, label %41, !llvm.loop !29

41:                                               ; preds = %37, %32
  %42 = atomicrmw sub ptr @sleepers, i32 1 seq_cst, align 4
  %43 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #12
  br label %44

44:                                               ; preds = %29, %7, %41
  %45 = load atomic i32, ptr @generation seq_cst, align 64
  %46 = load atomic i32, ptr @stopping seq_cst, align 4
  %47 = icmp eq i32 %46, 0
  br i1 %47, label %49, label %48

48:                                               ; preds = %44
  ret ptr null

49:                                               ; preds = %44
  %50 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 5) monotonic, align 8
  %51 = call i32 @sched_getcpu() #12
  %52 = icmp eq i32 %51, %50
  br i1 %52, label %53, label %71

53:                                               ; preds = %49
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #12
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %2, ptr noundef nonnull align 8 dereferenceable(128) @usable, i64 128, i1 false), !tbaa.struct !30
  %54 = icmp ult i32 %50, 1024
  br i1 %54, label %55, label %64

55:                                               ; preds = %53
  %56 = zext i32 %50 to i64
  %57 = and i64 %56, 63
  %58 = shl nuw i64 1, %57
  %59 = xor i64 %58, -1
  %60 = lshr i64 %56, 6
  %61 = getelementptr inbounds i64, ptr %2, i64 %60
  %62 = load i64, ptr %61, align 8, !tbaa !7
  %63 = and i64 %62, %59
  store i64 %63, ptr %61, align 8, !tbaa !7
  br label %64

64:                                               ; preds = %55, %53
  %65 = call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull %2) #12
  %66 = icmp eq i32 %65, 0
  br i1 %66, label %70, label %67

67:                                               ; preds = %64
  %68 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %2) #12
  %69 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #12
  br label %70

70:                                               ; preds = %64, %67
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #12
  br label %71

71:                                               ; preds = %70, %49
  call fastcc void @work(i32 noundef %5, i32 noundef %45)
  br label %7
}

; Function Attrs: nofree nounwind memory(read)
declare noundef ptr @getenv(ptr nocapture noundef) local_unnamed_addr #7

; Function Attrs: nounwind
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @__sched_cpucount(i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind uwtable
define internal fastcc i32 @quota_cpus(i32 noundef %0) unnamed_addr #0 {
  %2 = alloca [64 x i8], align 16
  %3 = alloca ptr, align 8
  call void @llvm.lifetime.start.p0(i64 64, ptr nonnull %2) #12
  %4 = tail call i32 (ptr, i32, ...) @open(ptr noundef nonnull @.str.1, i32 noundef 524288) #12
  %5 = icmp slt i32 %4, 0
  br i1 %5, label %25, label %6

6:                                                ; preds = %1
  %7 = call i64 @read(i32 noundef %4, ptr noundef nonnull %2, i64 noundef 63) #12
  %8 = tail call i32 @close(i32 noundef %4) #12
  %9 = icmp slt i64 %7, 1
  br i1 %9, label %25, label %10

10:                                               ; preds = %6
  %11 = getelementptr inbounds [64 x i8], ptr %2, i64 0, i64 %7
  store i8 0, ptr %11, align 1, !tbaa !31
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #12
  %12 = call i64 @strtol(ptr noundef nonnull %2, ptr noundef nonnull %3, i32 noundef 10) #12
  %13 = load ptr, ptr %3, align 8, !tbaa !32
  %14 = call i64 @strtol(ptr nocapture noundef %13, ptr noundef null, i32 noundef 10) #12
  %15 = icmp slt i64 %12, 1
  %16 = icmp slt i64 %14, 1
  %17 = select i1 %15, i1 true, i1 %16
  br i1 %17, label %23, label %18

18:                                               ; preds = %10
  %19 = add nsw i64 %12, -1
  %20 = add nuw i64 %19, %14
  %21 = udiv i64 %20, %14
  %22 = trunc i64 %21 to i32
  br label %23

23:                                               ; preds = %10, %18
  %24 = phi i32 [ %22, %18 ], [ %0, %10 ]
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #12
  br label %25

25:                                               ; preds = %23, %6, %1
  %26 = phi i32 [ %0, %1 ], [ %24, %23 ], [ %0, %6 ]
  call void @llvm.lifetime.end.p0(i64 64, ptr nonnull %2) #12
  ret i32 %26
}

; Function Attrs: mustprogress nofree nounwind willreturn
declare i64 @strtol(ptr noundef readonly, ptr nocapture noundef, i32 noundef) local_unnamed_addr #8

; Function Attrs: nofree
declare noundef i32 @open(ptr nocapture noundef readonly, i32 noundef, ...) local_unnamed_addr #9

; Function Attrs: nofree
declare noundef i64 @read(i32 noundef, ptr nocapture noundef, i64 noundef) local_unnamed_addr #9

declare i32 @close(i32 noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @sched_getcpu() local_unnamed_addr #6

; Function Attrs: nounwind uwtable
define internal fastcc void @work(i32 noundef %0, i32 noundef %1) unnamed_addr #0 {
  %3 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 4) monotonic, align 4
  %4 = icmp sgt i32 %3, %0
  %5 = icmp sgt i32 %3, 0
  %6 = and i1 %4, %5
  br i1 %6, label %7, label %70

7:                                                ; preds = %2
  %8 = zext i32 %1 to i64
  %9 = shl nuw i64 %8, 32
  br label %10

10:                                               ; preds = %7, %46
  %11 = phi i32 [ 0, %7 ], [ %47, %46 ]
  %12 = add nsw i32 %11, %0
  %13 = srem i32 %12, %3
  %14 = icmp eq i32 %11, 0
  %15 = sext i32 %13 to i64
  %16 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %15
  br label %17

17:                                               ; preds = %62, %10
  %18 = load atomic i64, ptr %16 acquire, align 64
  br label %19

19:                                               ; preds = %40, %17
  %20 = phi i64 [ %18, %17 ], [ %45, %40 ]
  %21 = trunc i64 %20 to i32
  %22 = lshr i32 %21, 16
  %23 = and i32 %21, 65535
  %24 = lshr i64 %20, 32
  %25 = icmp eq i64 %24, %8
  %26 = icmp ult i32 %22, %23
  %27 = select i1 %25, i1 %26, i1 false
  br i1 %27, label %28, label %46

28:                                               ; preds = %19
  br i1 %14, label %29, label %35

29:                                               ; preds = %28
  %30 = add nuw nsw i32 %22, 1
  %31 = zext i32 %30 to i64
  %32 = shl nuw nsw i64 %31, 16
  %33 = and i64 %20, 65535
  %34 = or i64 %32, %33
  br label %40

35:                                               ; preds = %28
  %36 = add nsw i32 %23, -1
  %37 = and i64 %20, 4294901760
  %38 = zext i32 %36 to i64
  %39 = or i64 %37, %38
  br label %40

40:                                               ; preds = %35, %29
  %41 = phi i64 [ %34, %29 ], [ %39, %35 ]
  %42 = or i64 %41, %9
  %43 = cmpxchg weak ptr %16, i64 %20, i64 %42 seq_cst seq_cst, align 8
  %44 = extractvalue { i64, i1 } %43, 1
  %45 = extractvalue { i64, i1 } %43, 0
  br i1 %44, label %49, label %19

46:                                               ; preds = %19
  %47 = add nuw nsw i32 %11, 1
  %48 = icmp eq i32 %47, %3
  br i1 %48, label %70, label %10, !llvm.loop !33

49:                                               ; preds = %40
  %50 = add nsw i32 %23, -1
  %51 = select i1 %14, i32 %22, i32 %50
  %52 = load i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3), align 8, !tbaa !21
  %53 = load ptr, ptr @job, align 8, !tbaa !15
  %54 = load ptr, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !19
  %55 = tail call i32 %53(i32 noundef %51, ptr noundef nonnull getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2), ptr noundef %54) #12
  %56 = icmp eq i32 %55, 0
  br i1 %56, label %58, label %57

57:                                               ; preds = %49
  store atomic i32 1, ptr @failure seq_cst, align 4
  br label %58

58:                                               ; preds = %57, %49
  %59 = atomicrmw add ptr @finished, i32 1 seq_cst, align 4
  %60 = add nsw i32 %59, 1
  %61 = icmp eq i32 %60, %52
  br i1 %61, label %63, label %62

62:                                               ; preds = %58, %63, %66
  br label %17, !llvm.loop !34

63:                                               ; preds = %58
  %64 = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %65 = icmp eq i32 %64, 0
  br i1 %65, label %62, label %66

66:                                               ; preds = %63
  %67 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #12
  %68 = tail call i32 @pthread_cond_signal(ptr noundef nonnull @job_ended) #12
  %69 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #12
  br label %62

70:                                               ; preds = %46, %2
  ret void
}


declare i32 @pthread_cond_wait(ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @sched_setaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_cond_signal(ptr noundef) local_unnamed_addr #6

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #10

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #10

; Function Attrs: nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #11

attributes #0 = { nounwind uwtable }
attributes #1 = { nounwind }
attributes #2 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #3 = { mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) uwtable }
attributes #4 = { mustprogress nofree norecurse nounwind willreturn memory(readwrite, inaccessiblemem: none) uwtable }
attributes #5 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #6 = { nounwind }
attributes #7 = { nofree nounwind memory(read) }
attributes #8 = { mustprogress nofree nounwind willreturn }
attributes #9 = { nofree }
attributes #10 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #11 = { nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #12 = { nounwind }

!llvm.module.flags = !{!0, !1, !2}

!0 = !{i32 1, !"wchar_size", i32 4}
!1 = !{i32 8, !"PIC Level", i32 2}
!2 = !{i32 7, !"uwtable", i32 2}
!3 = !{!4, !4, i64 0}
!4 = !{!"int", !5, i64 0}
!5 = !{!"omnipotent char", !6, i64 0}
!6 = !{!"Simple C/C++ TBAA"}
!7 = !{!8, !8, i64 0}
!8 = !{!"long", !5, i64 0}
!9 = distinct !{!9, !10}
!10 = !{!"llvm.loop.mustprogress"}
!11 = !{!12, !4, i64 0}
!12 = !{!"", !4, i64 0, !4, i64 4, !8, i64 8}
!13 = !{!12, !8, i64 8}
!14 = distinct !{!14, !10}
!15 = !{!16, !17, i64 0}
!16 = !{!"", !17, i64 0, !17, i64 8, !18, i64 16, !4, i64 32, !5, i64 36, !5, i64 40}
!17 = !{!"any pointer", !5, i64 0}
!18 = !{!"", !17, i64 0, !4, i64 8}
!19 = !{!16, !17, i64 8}
!20 = !{!16, !4, i64 24}
!21 = !{!16, !4, i64 32}
!22 = !{!23, !8, i64 0}
!23 = !{!"timespec", !8, i64 0, !8, i64 8}
!24 = !{!23, !8, i64 8}
!25 = distinct !{!25, !10}
!26 = distinct !{!26, !10}
!27 = distinct !{!27, !10}
!28 = distinct !{!28, !10}
!29 = distinct !{!29, !10}
!30 = !{i64 0, i64 128, !31}
!31 = !{!5, !5, i64 0}
!32 = !{!17, !17, i64 0}
!33 = distinct !{!33, !10}
!34 = distinct !{!34, !10}
