
%union.lock_t = type { %union.pthread_cond_t, [80 x i8] }
%union.pthread_cond_t = type { %struct.__pthread_cond_s }
%struct.__pthread_cond_s = type { %union.__atomic_wide_counter, %union.__atomic_wide_counter, [2 x i32], [2 x i32], i32, i32, [2 x i32] }
%union.__atomic_wide_counter = type { i64 }
%struct.group_t = type { ptr, i32 }
%struct.cpu_set_t = type { [16 x i64] }
%struct.anon.0 = type { ptr, ptr, %struct.group_t, i32, i32, i32 }
%struct.share_t = type { i64, [56 x i8] }
%struct.timespec = type { i64, i64 }

@this_library = internal global i8 0, align 1
@stopping = internal unnamed_addr global i32 0, align 4
@threads = internal unnamed_addr global i32 0, align 4
@workers = internal global [128 x i64] zeroinitializer, align 16
@most_threads = internal unnamed_addr global i32 128, align 4
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
  tail call void @__cxa_finalize(ptr noundef nonnull @this_library) #10
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
  %8 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #10
  %9 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #10
  %10 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #10
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
  %19 = tail call i32 @pthread_join(i64 noundef %18, ptr noundef null) #10
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
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %6) #10
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %6, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %15 = call i32 %0(i32 noundef 0, ptr noundef nonnull %6, ptr noundef %1) #10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %6) #10
  br label %160

16:                                               ; preds = %11
  %17 = load i32, ptr @threads, align 4, !tbaa !3
  %18 = icmp eq i32 %17, 0
  br i1 %18, label %19, label %65

19:                                               ; preds = %16
  %20 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @lock, ptr noundef null) #10
  %21 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_came, ptr noundef null) #10
  %22 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_ended, ptr noundef null) #10
  store atomic i32 0, ptr @generation seq_cst, align 64
  %23 = load i1, ptr @start.registered, align 1
  br i1 %23, label %26, label %24

24:                                               ; preds = %19
  %25 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_workers, ptr noundef nonnull @this_library) #10
  br label %26

26:                                               ; preds = %24, %19
  store i1 true, ptr @start.registered, align 1
  %27 = tail call ptr @getenv(ptr noundef nonnull @.str) #10
  %28 = icmp eq ptr %27, null
  br i1 %28, label %32, label %29

29:                                               ; preds = %26
  %30 = tail call i64 @strtol(ptr nocapture noundef nonnull %27, ptr noundef null, i32 noundef 10) #10
  %31 = trunc i64 %30 to i32
  br label %32

32:                                               ; preds = %29, %26
  %33 = phi i32 [ %31, %29 ], [ 0, %26 ]
  %34 = tail call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #10
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %36, label %63

36:                                               ; preds = %32
  %37 = tail call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull @usable) #10
  %38 = tail call fastcc i32 @quota_cpus(i32 noundef %37)
  %39 = icmp slt i32 %38, %37
  br i1 %39, label %40, label %42

40:                                               ; preds = %36
  %41 = tail call fastcc i32 @quota_cpus(i32 noundef %37)
  br label %42

42:                                               ; preds = %40, %36
  %43 = phi i32 [ %41, %40 ], [ %37, %36 ]
  %44 = icmp sgt i32 %33, 0
  %45 = tail call i32 @llvm.smin.i32(i32 %33, i32 %43)
  %46 = select i1 %44, i32 %45, i32 %43
  %47 = tail call i32 @llvm.smax.i32(i32 %46, i32 1)
  %48 = tail call i32 @llvm.smin.i32(i32 %47, i32 128)
  %49 = icmp ugt i32 %48, 1
  br i1 %49, label %50, label %63

50:                                               ; preds = %42
  %51 = zext i32 %48 to i64
  br label %52

52:                                               ; preds = %58, %50
  %53 = phi i64 [ 1, %50 ], [ %59, %58 ]
  %54 = getelementptr inbounds [128 x i64], ptr @workers, i64 0, i64 %53
  %55 = inttoptr i64 %53 to ptr
  %56 = tail call i32 @pthread_create(ptr noundef nonnull %54, ptr noundef null, ptr noundef nonnull @worker, ptr noundef nonnull %55) #10
  %57 = icmp eq i32 %56, 0
  br i1 %57, label %58, label %61

58:                                               ; preds = %52
  %59 = add nuw nsw i64 %53, 1
  %60 = icmp eq i64 %59, %51
  br i1 %60, label %63, label %52, !llvm.loop !11

61:                                               ; preds = %52
  %62 = trunc i64 %53 to i32
  br label %63

63:                                               ; preds = %58, %32, %42, %61
  %64 = phi i32 [ 1, %42 ], [ 1, %32 ], [ %62, %61 ], [ %48, %58 ]
  store i32 %64, ptr @threads, align 4, !tbaa !3
  br label %65

65:                                               ; preds = %63, %16
  %66 = phi i32 [ %64, %63 ], [ %17, %16 ]
  %67 = load atomic i32, ptr @most_threads monotonic, align 4
  %68 = tail call i32 @llvm.smin.i32(i32 %66, i32 %67)
  %69 = icmp sgt i32 %68, 1
  br i1 %69, label %70, label %156

70:                                               ; preds = %65
  %71 = icmp slt i32 %7, 1
  br i1 %71, label %84, label %72

72:                                               ; preds = %70
  %73 = shl nsw i32 %68, 3
  %74 = sdiv i32 %7, %73
  %75 = tail call i32 @llvm.smax.i32(i32 %74, i32 1)
  %76 = add nsw i32 %7, -1
  %77 = add nuw i32 %75, %76
  %78 = udiv i32 %77, %75
  %79 = add i32 %78, %76
  %80 = udiv i32 %79, %78
  %81 = add i32 %80, %76
  %82 = udiv i32 %81, %80
  %83 = icmp sgt i32 %82, 1
  br i1 %83, label %84, label %156

84:                                               ; preds = %70, %72
  %85 = phi i32 [ %82, %72 ], [ %68, %70 ]
  %86 = load atomic i32, ptr @generation monotonic, align 64
  %87 = add i32 %86, 1
  store ptr %0, ptr @job, align 8, !tbaa !12
  store ptr %1, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !16
  store i32 %85, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2, i32 1), align 8, !tbaa !17
  store i32 %85, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3), align 8, !tbaa !18
  store atomic i32 %68, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 4) monotonic, align 4
  %88 = tail call i32 @sched_getcpu() #10
  store atomic i32 %88, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 5) monotonic, align 8
  store atomic i32 0, ptr @finished monotonic, align 64
  store atomic i32 0, ptr @failure monotonic, align 4
  %89 = zext i32 %87 to i64
  %90 = shl nuw i64 %89, 32
  %91 = zext i32 %68 to i64
  br label %136

92:                                               ; preds = %136
  %93 = atomicrmw add ptr @generation, i32 1 seq_cst, align 4
  %94 = load atomic i32, ptr @sleepers seq_cst, align 64
  %95 = icmp eq i32 %94, 0
  br i1 %95, label %100, label %96

96:                                               ; preds = %92
  %97 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #10
  %98 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #10
  %99 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #10
  br label %100

100:                                              ; preds = %96, %92
  tail call fastcc void @work(i32 noundef 0, i32 noundef %87)
  %101 = load atomic i32, ptr @finished acquire, align 64
  %102 = icmp eq i32 %101, %85
  br i1 %102, label %152, label %103

103:                                              ; preds = %100
  %104 = getelementptr inbounds %struct.timespec, ptr %5, i64 0, i32 1
  br label %105

105:                                              ; preds = %123, %103
  %106 = phi i64 [ 0, %103 ], [ %124, %123 ]
  %107 = phi i32 [ 1, %103 ], [ %125, %123 ]
  call void @autotune_spin_hint() #10
  %108 = load atomic i32, ptr @finished acquire, align 64
  %109 = icmp eq i32 %108, %85
  %110 = and i32 %107, 63
  %111 = icmp ne i32 %110, 0
  %112 = select i1 %109, i1 true, i1 %111
  br i1 %112, label %123, label %113

113:                                              ; preds = %105
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %5) #10
  %114 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %5) #10
  %115 = load i64, ptr %5, align 8, !tbaa !19
  %116 = mul nsw i64 %115, 1000000000
  %117 = load i64, ptr %104, align 8, !tbaa !21
  %118 = add nsw i64 %116, %117
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %5) #10
  %119 = icmp eq i64 %106, 0
  %120 = add nsw i64 %118, 100000
  %121 = select i1 %119, i64 %120, i64 %106
  %122 = icmp sgt i64 %118, %121
  br i1 %122, label %126, label %123

123:                                              ; preds = %113, %105
  %124 = phi i64 [ %106, %105 ], [ %121, %113 ]
  %125 = add nuw nsw i32 %107, 1
  br i1 %109, label %152, label %105, !llvm.loop !22

126:                                              ; preds = %113
  %127 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #10
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  %128 = load atomic i32, ptr @finished seq_cst, align 64
  %129 = icmp eq i32 %128, %85
  br i1 %129, label %134, label %130

130:                                              ; preds = %126, %130
  %131 = call i32 @pthread_cond_wait(ptr noundef nonnull @job_ended, ptr noundef nonnull @lock) #10
  %132 = load atomic i32, ptr @finished seq_cst, align 64
  %133 = icmp eq i32 %132, %85
  br i1 %133, label %134, label %130, !llvm.loop !23

134:                                              ; preds = %130, %126
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  %135 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #10
  br label %152

136:                                              ; preds = %136, %84
  %137 = phi i64 [ 0, %84 ], [ %141, %136 ]
  %138 = trunc i64 %137 to i32
  %139 = mul nsw i32 %85, %138
  %140 = sdiv i32 %139, %68
  %141 = add nuw nsw i64 %137, 1
  %142 = trunc i64 %141 to i32
  %143 = mul nsw i32 %85, %142
  %144 = sdiv i32 %143, %68
  %145 = zext i32 %140 to i64
  %146 = shl nuw nsw i64 %145, 16
  %147 = or i64 %146, %90
  %148 = zext i32 %144 to i64
  %149 = or i64 %147, %148
  %150 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %137
  store atomic i64 %149, ptr %150 release, align 64
  %151 = icmp eq i64 %141, %91
  br i1 %151, label %92, label %136, !llvm.loop !24

152:                                              ; preds = %123, %100, %134
  %153 = load atomic i32, ptr @failure seq_cst, align 4
  %154 = icmp ne i32 %153, 0
  %155 = sext i1 %154 to i32
  br label %158

156:                                              ; preds = %65, %72
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #10
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %4, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %157 = call i32 %0(i32 noundef 0, ptr noundef nonnull %4, ptr noundef %1) #10
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #10
  br label %158

158:                                              ; preds = %156, %152
  %159 = phi i32 [ %155, %152 ], [ %157, %156 ]
  store atomic i32 0, ptr @taken release, align 64
  br label %160

160:                                              ; preds = %158, %14
  %161 = phi i32 [ %15, %14 ], [ %159, %158 ]
  ret i32 %161
}

; Function Attrs: nounwind
declare i32 @pthread_mutex_lock(ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @pthread_cond_broadcast(ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @pthread_mutex_unlock(ptr noundef) local_unnamed_addr #4

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite)
declare void @llvm.memcpy.p0.p0.i64(ptr noalias nocapture writeonly, ptr noalias nocapture readonly, i64, i1 immarg) #5

; Function Attrs: nounwind
declare i32 @pthread_mutex_init(ptr noundef, ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @pthread_cond_init(ptr noundef, ptr noundef) local_unnamed_addr #4

declare i32 @__register_atfork(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) uwtable
define internal void @forget_workers() #3 {
  store i32 0, ptr @threads, align 4, !tbaa !3
  store atomic i32 0, ptr @taken seq_cst, align 64
  store atomic i32 0, ptr @sleepers seq_cst, align 64
  ret void
}

; Function Attrs: nounwind
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #4

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
  call void @autotune_spin_hint() #10
  %14 = load atomic i32, ptr @generation acquire, align 64
  %15 = icmp ne i32 %14, %8
  %16 = and i32 %13, 63
  %17 = icmp ne i32 %16, 0
  %18 = select i1 %15, i1 true, i1 %17
  br i1 %18, label %29, label %19

19:                                               ; preds = %11
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #10
  %20 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %3) #10
  %21 = load i64, ptr %3, align 8, !tbaa !19
  %22 = mul nsw i64 %21, 1000000000
  %23 = load i64, ptr %6, align 8, !tbaa !21
  %24 = add nsw i64 %22, %23
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #10
  %25 = icmp eq i64 %12, 0
  %26 = add nsw i64 %24, 100000
  %27 = select i1 %25, i64 %26, i64 %12
  %28 = icmp sgt i64 %24, %27
  br i1 %28, label %32, label %29

29:                                               ; preds = %19, %11
  %30 = phi i64 [ %12, %11 ], [ %27, %19 ]
  %31 = add nuw nsw i32 %13, 1
  br i1 %15, label %44, label %11, !llvm.loop !25

32:                                               ; preds = %19
  %33 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #10
  %34 = atomicrmw add ptr @sleepers, i32 1 seq_cst, align 4
  %35 = load atomic i32, ptr @generation seq_cst, align 64
  %36 = icmp eq i32 %35, %8
  br i1 %36, label %37, label %41

37:                                               ; preds = %32, %37
  %38 = call i32 @pthread_cond_wait(ptr noundef nonnull @job_came, ptr noundef nonnull @lock) #10
  %39 = load atomic i32, ptr @generation seq_cst, align 64
  %40 = icmp eq i32 %39, %8
  br i1 %40, label %37, label %41, !llvm.loop !26

41:                                               ; preds = %37, %32
  %42 = atomicrmw sub ptr @sleepers, i32 1 seq_cst, align 4
  %43 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #10
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
  %51 = call i32 @sched_getcpu() #10
  %52 = icmp eq i32 %51, %50
  br i1 %52, label %53, label %71

53:                                               ; preds = %49
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #10
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %2, ptr noundef nonnull align 8 dereferenceable(128) @usable, i64 128, i1 false), !tbaa.struct !27
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
  %65 = call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull %2) #10
  %66 = icmp eq i32 %65, 0
  br i1 %66, label %70, label %67

67:                                               ; preds = %64
  %68 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %2) #10
  %69 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #10
  br label %70

70:                                               ; preds = %64, %67
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #10
  br label %71

71:                                               ; preds = %70, %49
  call fastcc void @work(i32 noundef %5, i32 noundef %45)
  br label %7
}

; Function Attrs: nofree nounwind memory(read)
declare noundef ptr @getenv(ptr nocapture noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @sched_getaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @__sched_cpucount(i64 noundef, ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind uwtable
define internal fastcc i32 @quota_cpus(i32 noundef %0) unnamed_addr #0 {
  %2 = alloca [64 x i8], align 16
  %3 = alloca ptr, align 8
  call void @llvm.lifetime.start.p0(i64 64, ptr nonnull %2) #10
  %4 = tail call i32 (ptr, i32, ...) @open(ptr noundef nonnull @.str.1, i32 noundef 524288) #10
  %5 = icmp slt i32 %4, 0
  br i1 %5, label %25, label %6

6:                                                ; preds = %1
  %7 = call i64 @read(i32 noundef %4, ptr noundef nonnull %2, i64 noundef 63) #10
  %8 = tail call i32 @close(i32 noundef %4) #10
  %9 = icmp slt i64 %7, 1
  br i1 %9, label %25, label %10

10:                                               ; preds = %6
  %11 = getelementptr inbounds [64 x i8], ptr %2, i64 0, i64 %7
  store i8 0, ptr %11, align 1, !tbaa !28
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #10
  %12 = call i64 @strtol(ptr noundef nonnull %2, ptr noundef nonnull %3, i32 noundef 10) #10
  %13 = load ptr, ptr %3, align 8, !tbaa !29
  %14 = call i64 @strtol(ptr nocapture noundef %13, ptr noundef null, i32 noundef 10) #10
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
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #10
  br label %25

25:                                               ; preds = %23, %6, %1
  %26 = phi i32 [ %0, %1 ], [ %24, %23 ], [ %0, %6 ]
  call void @llvm.lifetime.end.p0(i64 64, ptr nonnull %2) #10
  ret i32 %26
}

; Function Attrs: mustprogress nofree nounwind willreturn
declare i64 @strtol(ptr noundef readonly, ptr nocapture noundef, i32 noundef) local_unnamed_addr #7

; Function Attrs: nofree
declare noundef i32 @open(ptr nocapture noundef readonly, i32 noundef, ...) local_unnamed_addr #8

; Function Attrs: nofree
declare noundef i64 @read(i32 noundef, ptr nocapture noundef, i64 noundef) local_unnamed_addr #8

declare i32 @close(i32 noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @sched_getcpu() local_unnamed_addr #4

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
  br i1 %48, label %70, label %10, !llvm.loop !30

49:                                               ; preds = %40
  %50 = add nsw i32 %23, -1
  %51 = select i1 %14, i32 %22, i32 %50
  %52 = load i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3), align 8, !tbaa !18
  %53 = load ptr, ptr @job, align 8, !tbaa !12
  %54 = load ptr, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !16
  %55 = tail call i32 %53(i32 noundef %51, ptr noundef nonnull getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2), ptr noundef %54) #10
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
  br label %17, !llvm.loop !31

63:                                               ; preds = %58
  %64 = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %65 = icmp eq i32 %64, 0
  br i1 %65, label %62, label %66

66:                                               ; preds = %63
  %67 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #10
  %68 = tail call i32 @pthread_cond_signal(ptr noundef nonnull @job_ended) #10
  %69 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #10
  br label %62

70:                                               ; preds = %46, %2
  ret void
}


declare i32 @pthread_cond_wait(ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @sched_setaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #4

; Function Attrs: nounwind
declare i32 @pthread_cond_signal(ptr noundef) local_unnamed_addr #4

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #9

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #9

attributes #0 = { nounwind uwtable }
attributes #1 = { nounwind }
attributes #2 = { mustprogress nocallback nofree nosync nounwind willreturn memory(argmem: readwrite) }
attributes #3 = { mustprogress nofree norecurse nounwind willreturn memory(readwrite, argmem: none, inaccessiblemem: none) uwtable }
attributes #4 = { nounwind }
attributes #5 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: readwrite) }
attributes #6 = { nofree nounwind memory(read) }
attributes #7 = { mustprogress nofree nounwind willreturn }
attributes #8 = { nofree }
attributes #9 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #10 = { nounwind }

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
!11 = distinct !{!11, !10}
!12 = !{!13, !14, i64 0}
!13 = !{!"", !14, i64 0, !14, i64 8, !15, i64 16, !4, i64 32, !5, i64 36, !5, i64 40}
!14 = !{!"any pointer", !5, i64 0}
!15 = !{!"", !14, i64 0, !4, i64 8}
!16 = !{!13, !14, i64 8}
!17 = !{!13, !4, i64 24}
!18 = !{!13, !4, i64 32}
!19 = !{!20, !8, i64 0}
!20 = !{!"timespec", !8, i64 0, !8, i64 8}
!21 = !{!20, !8, i64 8}
!22 = distinct !{!22, !10}
!23 = distinct !{!23, !10}
!24 = distinct !{!24, !10}
!25 = distinct !{!25, !10}
!26 = distinct !{!26, !10}
!27 = !{i64 0, i64 128, !28}
!28 = !{!5, !5, i64 0}
!29 = !{!14, !14, i64 0}
!30 = distinct !{!30, !10}
!31 = distinct !{!31, !10}
