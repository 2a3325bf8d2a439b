
%union.lock_t = type { %union.pthread_cond_t, [80 x i8] }
%union.pthread_cond_t = type { %struct.__pthread_cond_s }
%struct.__pthread_cond_s = type { %union.__atomic_wide_counter, %union.__atomic_wide_counter, [2 x i32], [2 x i32], i32, i32, [2 x i32] }
%union.__atomic_wide_counter = type { i64 }
%struct.group_t = type { ptr, i32 }
%struct.cpu_set_t = type { [16 x i64] }
%struct.anon.0 = type { ptr, ptr, %struct.group_t, i32, i32, i64, i32 }
%struct.share_t = type { i64, i32, [52 x i8] }
%struct.any_t = type { i32, i32, i64 }
%struct.timespec = type { i64, i64 }

@this_library = internal global i8 0, align 1
@stopping = internal unnamed_addr global i32 0, align 4
@threads = internal unnamed_addr global i32 0, align 4
@workers = internal global [128 x i64] zeroinitializer, align 16
@most_threads = internal unnamed_addr global i32 128, align 4
@asked_threads = internal unnamed_addr global i32 0, align 4
@autotune_next_extent = hidden local_unnamed_addr global i32 0, align 4
@autotune_next_threads = hidden local_unnamed_addr global i32 0, align 4
@taken = internal global i32 0, align 64
@__TVMBackendParallelLaunch = hidden local_unnamed_addr global ptr @autotune_parallel, align 8
@generation = internal global i32 0, align 64
@sleepers = internal global i32 0, align 64
@lock = internal global %union.lock_t zeroinitializer, align 64
@job_came = internal global %union.lock_t zeroinitializer, align 64
@__const.alone.group = private unnamed_addr constant %struct.group_t { ptr null, i32 1 }, align 8
@start.registered = internal unnamed_addr global i1 false, align 1
@job_ended = internal global %union.lock_t zeroinitializer, align 64
@helpers = internal global i32 0, align 4
@.str = private unnamed_addr constant [16 x i8] c"TVM_NUM_THREADS\00", align 1
@usable = internal global %struct.cpu_set_t zeroinitializer, align 8
@.str.1 = private unnamed_addr constant [23 x i8] c"/sys/fs/cgroup/cpu.max\00", align 1
@job = internal global %struct.anon.0 zeroinitializer, align 8
@finished = internal global i32 0, align 64
@shares = internal global [128 x %struct.share_t] zeroinitializer, align 64
@failure = internal unnamed_addr global i32 0, align 4
@caller_sleeps = internal unnamed_addr global i32 0, align 4
@llvm.global_dtors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @autotune_stop_threads, ptr null }]

; Function Attrs: nounwind uwtable
define hidden void @autotune_stop_threads() #0 {
  tail call void @__cxa_finalize(ptr noundef nonnull @this_library) #13
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
  %8 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  %9 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #13
  %10 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
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
  %19 = tail call i32 @pthread_join(i64 noundef %18, ptr noundef null) #13
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
  %6 = alloca %struct.timespec, align 8
  %7 = alloca %struct.group_t, align 8
  %8 = alloca %struct.group_t, align 8
  %9 = load atomic i32, ptr @autotune_next_extent monotonic, align 4
  %10 = load atomic i32, ptr @autotune_next_threads monotonic, align 4
  store atomic i32 0, ptr @autotune_next_extent monotonic, align 4
  %11 = icmp eq i32 %10, 0
  br i1 %11, label %13, label %12

12:                                               ; preds = %3
  store atomic i32 0, ptr @autotune_next_threads monotonic, align 4
  br label %13

13:                                               ; preds = %12, %3
  %14 = icmp eq i32 %9, 1
  %15 = icmp eq i32 %2, 1
  %16 = or i1 %15, %14
  %17 = icmp eq i32 %10, 1
  %18 = select i1 %16, i1 true, i1 %17
  br i1 %18, label %19, label %21

19:                                               ; preds = %13
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %8) #13
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %8, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %20 = call i32 %0(i32 noundef 0, ptr noundef nonnull %8, ptr noundef %1) #13
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %8) #13
  br label %197

21:                                               ; preds = %13
  %22 = atomicrmw xchg ptr @taken, i32 1 acquire, align 4
  %23 = icmp eq i32 %22, 0
  br i1 %23, label %26, label %24

24:                                               ; preds = %21
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %7) #13
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %7, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %25 = call i32 %0(i32 noundef 0, ptr noundef nonnull %7, ptr noundef %1) #13
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %7) #13
  br label %197

26:                                               ; preds = %21
  %27 = load i32, ptr @threads, align 4, !tbaa !3
  %28 = icmp eq i32 %27, 0
  br i1 %28, label %29, label %78

29:                                               ; preds = %26
  %30 = tail call i32 @pthread_mutex_init(ptr noundef nonnull @lock, ptr noundef null) #13
  %31 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_came, ptr noundef null) #13
  %32 = tail call i32 @pthread_cond_init(ptr noundef nonnull @job_ended, ptr noundef null) #13
  store atomic i32 0, ptr @generation seq_cst, align 64
  %33 = load i1, ptr @start.registered, align 1
  br i1 %33, label %36, label %34

34:                                               ; preds = %29
  %35 = tail call i32 @__register_atfork(ptr noundef null, ptr noundef null, ptr noundef nonnull @forget_workers, ptr noundef nonnull @this_library) #13
  br label %36

36:                                               ; preds = %34, %29
  store i1 true, ptr @start.registered, align 1
  %37 = tail call ptr @getenv(ptr noundef nonnull @.str) #13
  %38 = load atomic i32, ptr @asked_threads seq_cst, align 4
  %39 = icmp eq i32 %38, 0
  %40 = icmp ne ptr %37, null
  %41 = and i1 %40, %39
  br i1 %41, label %42, label %45

42:                                               ; preds = %36
  %43 = tail call i64 @strtol(ptr nocapture noundef nonnull %37, ptr noundef null, i32 noundef 10) #13
  %44 = trunc i64 %43 to i32
  br label %45

45:                                               ; preds = %42, %36
  %46 = phi i32 [ %44, %42 ], [ %38, %36 ]
  %47 = tail call i32 @sched_getaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #13
  %48 = icmp eq i32 %47, 0
  br i1 %48, label %49, label %76

49:                                               ; preds = %45
  %50 = tail call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull @usable) #13
  %51 = tail call fastcc i32 @quota_cpus(i32 noundef %50)
  %52 = icmp slt i32 %51, %50
  br i1 %52, label %53, label %55

53:                                               ; preds = %49
  %54 = tail call fastcc i32 @quota_cpus(i32 noundef %50)
  br label %55

55:                                               ; preds = %53, %49
  %56 = phi i32 [ %54, %53 ], [ %50, %49 ]
  %57 = icmp sgt i32 %46, 0
  %58 = tail call i32 @llvm.smin.i32(i32 %46, i32 %56)
  %59 = select i1 %57, i32 %58, i32 %56
  %60 = tail call i32 @llvm.smax.i32(i32 %59, i32 1)
  %61 = tail call i32 @llvm.smin.i32(i32 %60, i32 128)
  %62 = icmp ugt i32 %61, 1
  br i1 %62, label %63, label %76

63:                                               ; preds = %55
  %64 = zext i32 %61 to i64
  br label %65

65:                                               ; preds = %71, %63
  %66 = phi i64 [ 1, %63 ], [ %72, %71 ]
  %67 = getelementptr inbounds [128 x i64], ptr @workers, i64 0, i64 %66
  %68 = inttoptr i64 %66 to ptr
  %69 = tail call i32 @pthread_create(ptr noundef nonnull %67, ptr noundef null, ptr noundef nonnull @worker, ptr noundef nonnull %68) #13
  %70 = icmp eq i32 %69, 0
  br i1 %70, label %71, label %74

71:                                               ; preds = %65
  %72 = add nuw nsw i64 %66, 1
  %73 = icmp eq i64 %72, %64
  br i1 %73, label %76, label %65, !llvm.loop !14

74:                                               ; preds = %65
  %75 = trunc i64 %66 to i32
  br label %76

76:                                               ; preds = %71, %45, %55, %74
  %77 = phi i32 [ 1, %55 ], [ 1, %45 ], [ %75, %74 ], [ %61, %71 ]
  store i32 %77, ptr @threads, align 4, !tbaa !3
  br label %78

78:                                               ; preds = %76, %26
  %79 = phi i32 [ %77, %76 ], [ %27, %26 ]
  %80 = load atomic i32, ptr @most_threads monotonic, align 4
  %81 = tail call i32 @llvm.smin.i32(i32 %79, i32 %80)
  %82 = icmp sgt i32 %10, 0
  %83 = tail call i32 @llvm.smin.i32(i32 %81, i32 %10)
  %84 = select i1 %82, i32 %83, i32 %81
  %85 = icmp sgt i32 %84, 1
  br i1 %85, label %86, label %193

86:                                               ; preds = %78
  %87 = icmp slt i32 %9, 1
  br i1 %87, label %100, label %88

88:                                               ; preds = %86
  %89 = shl nsw i32 %84, 3
  %90 = sdiv i32 %9, %89
  %91 = tail call i32 @llvm.smax.i32(i32 %90, i32 1)
  %92 = add nsw i32 %9, -1
  %93 = add nuw i32 %91, %92
  %94 = udiv i32 %93, %91
  %95 = add i32 %94, %92
  %96 = udiv i32 %95, %94
  %97 = add i32 %96, %92
  %98 = udiv i32 %97, %96
  %99 = icmp sgt i32 %98, 1
  br i1 %99, label %100, label %193

100:                                              ; preds = %86, %88
  %101 = phi i32 [ %98, %88 ], [ %84, %86 ]
  %102 = load atomic i32, ptr @generation monotonic, align 64
  %103 = add i32 %102, 1
  store ptr %0, ptr @job, align 8, !tbaa !15
  store ptr %1, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !19
  store i32 %101, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2, i32 1), align 8, !tbaa !20
  store atomic i32 %101, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3) monotonic, align 8
  %104 = tail call i64 @pthread_self() #14
  store atomic i64 %104, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 5) monotonic, align 8
  store atomic i32 %84, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 4) monotonic, align 4
  %105 = tail call i32 @sched_getcpu() #13
  store atomic i32 %105, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 6) monotonic, align 8
  store atomic i32 0, ptr @finished monotonic, align 64
  store atomic i32 0, ptr @failure monotonic, align 4
  %106 = zext i32 %103 to i64
  %107 = shl nuw i64 %106, 32
  %108 = zext i32 %84 to i64
  br label %170

109:                                              ; preds = %170
  %110 = atomicrmw add ptr @generation, i32 1 seq_cst, align 4
  %111 = load atomic i32, ptr @sleepers seq_cst, align 64
  %112 = icmp eq i32 %111, 0
  br i1 %112, label %117, label %113

113:                                              ; preds = %109
  %114 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  %115 = tail call i32 @pthread_cond_broadcast(ptr noundef nonnull @job_came) #13
  %116 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
  br label %117

117:                                              ; preds = %113, %109
  tail call fastcc void @work(i32 noundef 0, i32 noundef %103)
  %118 = load atomic i32, ptr @finished acquire, align 64
  %119 = icmp eq i32 %118, %101
  br i1 %119, label %167, label %120

120:                                              ; preds = %117
  %121 = getelementptr inbounds %struct.timespec, ptr %6, i64 0, i32 1
  br label %122

122:                                              ; preds = %140, %120
  %123 = phi i64 [ 0, %120 ], [ %141, %140 ]
  %124 = phi i32 [ 1, %120 ], [ %142, %140 ]
  call void @autotune_spin_hint() #13
  %125 = load atomic i32, ptr @finished acquire, align 64
  %126 = icmp eq i32 %125, %101
  %127 = and i32 %124, 63
  %128 = icmp ne i32 %127, 0
  %129 = select i1 %126, i1 true, i1 %128
  br i1 %129, label %140, label %130

130:                                              ; preds = %122
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %6) #13
  %131 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %6) #13
  %132 = load i64, ptr %6, align 8, !tbaa !21
  %133 = mul nsw i64 %132, 1000000000
  %134 = load i64, ptr %121, align 8, !tbaa !23
  %135 = add nsw i64 %133, %134
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %6) #13
  %136 = icmp eq i64 %123, 0
  %137 = add nsw i64 %135, 100000
  %138 = select i1 %136, i64 %137, i64 %123
  %139 = icmp sgt i64 %135, %138
  br i1 %139, label %143, label %140

140:                                              ; preds = %130, %122
  %141 = phi i64 [ %123, %122 ], [ %138, %130 ]
  %142 = add nuw nsw i32 %124, 1
  br i1 %126, label %167, label %122, !llvm.loop !24

143:                                              ; preds = %130
  %144 = load atomic i32, ptr @finished seq_cst, align 64
  %145 = icmp eq i32 %144, %101
  br i1 %145, label %167, label %146

146:                                              ; preds = %143
  %147 = getelementptr inbounds %struct.timespec, ptr %5, i64 0, i32 1
  br label %148

148:                                              ; preds = %163, %146
  call fastcc void @help(i32 noundef 0, i32 noundef %103)
  %149 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  %150 = load atomic i32, ptr @finished seq_cst, align 64
  %151 = icmp eq i32 %150, %101
  br i1 %151, label %163, label %152

152:                                              ; preds = %148
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %5) #13
  %153 = call i32 @clock_gettime(i32 noundef 0, ptr noundef nonnull %5) #13
  %154 = load i64, ptr %147, align 8, !tbaa !23
  %155 = add nsw i64 %154, 300000
  store i64 %155, ptr %147, align 8, !tbaa !23
  %156 = icmp sgt i64 %154, 999699999
  br i1 %156, label %157, label %161

157:                                              ; preds = %152
  %158 = add nsw i64 %154, -999700000
  store i64 %158, ptr %147, align 8, !tbaa !23
  %159 = load i64, ptr %5, align 8, !tbaa !21
  %160 = add nsw i64 %159, 1
  store i64 %160, ptr %5, align 8, !tbaa !21
  br label %161

161:                                              ; preds = %157, %152
  %162 = call i32 @pthread_cond_timedwait(ptr noundef nonnull @job_ended, ptr noundef nonnull @lock, ptr noundef nonnull %5) #13
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %5) #13
  br label %163

163:                                              ; preds = %161, %148
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  %164 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
  %165 = load atomic i32, ptr @finished seq_cst, align 64
  %166 = icmp eq i32 %165, %101
  br i1 %166, label %167, label %148, !llvm.loop !25

167:                                              ; preds = %140, %163, %143, %117
  %168 = load atomic i32, ptr @helpers seq_cst, align 4
  %169 = icmp eq i32 %168, 0
  br i1 %169, label %189, label %186

170:                                              ; preds = %170, %100
  %171 = phi i64 [ 0, %100 ], [ %175, %170 ]
  %172 = trunc i64 %171 to i32
  %173 = mul nsw i32 %101, %172
  %174 = sdiv i32 %173, %84
  %175 = add nuw nsw i64 %171, 1
  %176 = trunc i64 %175 to i32
  %177 = mul nsw i32 %101, %176
  %178 = sdiv i32 %177, %84
  %179 = zext i32 %174 to i64
  %180 = shl nuw nsw i64 %179, 16
  %181 = or i64 %180, %107
  %182 = zext i32 %178 to i64
  %183 = or i64 %181, %182
  %184 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %171
  store atomic i64 %183, ptr %184 release, align 64
  %185 = icmp eq i64 %175, %108
  br i1 %185, label %109, label %170, !llvm.loop !26

186:                                              ; preds = %167, %186
  call void @autotune_spin_hint() #13
  %187 = load atomic i32, ptr @helpers seq_cst, align 4
  %188 = icmp eq i32 %187, 0
  br i1 %188, label %189, label %186, !llvm.loop !27

189:                                              ; preds = %186, %167
  %190 = load atomic i32, ptr @failure seq_cst, align 4
  %191 = icmp ne i32 %190, 0
  %192 = sext i1 %191 to i32
  br label %195

193:                                              ; preds = %78, %88
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #13
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %4, ptr noundef nonnull align 8 dereferenceable(16) @__const.alone.group, i64 16, i1 false)
  %194 = call i32 %0(i32 noundef 0, ptr noundef nonnull %4, ptr noundef %1) #13
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #13
  br label %195

195:                                              ; preds = %193, %189
  %196 = phi i32 [ %192, %189 ], [ %194, %193 ]
  store atomic i32 0, ptr @taken release, align 64
  br label %197

197:                                              ; preds = %195, %24, %19
  %198 = phi i32 [ %20, %19 ], [ %25, %24 ], [ %196, %195 ]
  ret i32 %198
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
  store atomic i32 0, ptr @helpers seq_cst, align 4
  ret void
}

; Function Attrs: nounwind
declare i32 @pthread_create(ptr noundef, ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind uwtable
define internal noalias ptr @worker(ptr noundef %0) #0 {
  %2 = alloca %struct.cpu_set_t, align 8
  %3 = alloca %struct.timespec, align 8
  %4 = alloca %struct.timespec, align 8
  %5 = ptrtoint ptr %0 to i64
  %6 = trunc i64 %5 to i32
  %7 = getelementptr inbounds %struct.timespec, ptr %4, i64 0, i32 1
  %8 = getelementptr inbounds %struct.timespec, ptr %3, i64 0, i32 1
  br label %9

9:                                                ; preds = %115, %1
  %10 = phi i32 [ 0, %1 ], [ %89, %115 ]
  %11 = load atomic i32, ptr @generation acquire, align 64
  %12 = icmp eq i32 %11, %10
  br i1 %12, label %13, label %88

13:                                               ; preds = %9, %31
  %14 = phi i64 [ %32, %31 ], [ 0, %9 ]
  %15 = phi i32 [ %33, %31 ], [ 1, %9 ]
  call void @autotune_spin_hint() #13
  %16 = load atomic i32, ptr @generation acquire, align 64
  %17 = icmp ne i32 %16, %10
  %18 = and i32 %15, 63
  %19 = icmp ne i32 %18, 0
  %20 = select i1 %17, i1 true, i1 %19
  br i1 %20, label %31, label %21

21:                                               ; preds = %13
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %4) #13
  %22 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %4) #13
  %23 = load i64, ptr %4, align 8, !tbaa !21
  %24 = mul nsw i64 %23, 1000000000
  %25 = load i64, ptr %7, align 8, !tbaa !23
  %26 = add nsw i64 %24, %25
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %4) #13
  %27 = icmp eq i64 %14, 0
  %28 = add nsw i64 %26, 100000
  %29 = select i1 %27, i64 %28, i64 %14
  %30 = icmp sgt i64 %26, %29
  br i1 %30, label %34, label %31

31:                                               ; preds = %21, %13
  %32 = phi i64 [ %14, %13 ], [ %29, %21 ]
  %33 = add nuw nsw i32 %15, 1
  br i1 %17, label %88, label %13, !llvm.loop !28

34:                                               ; preds = %21
  %35 = load atomic i32, ptr @generation seq_cst, align 64
  %36 = icmp eq i32 %35, %10
  br i1 %36, label %37, label %76

37:                                               ; preds = %34, %71
  %38 = load atomic i32, ptr @finished seq_cst, align 64
  %39 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3) seq_cst, align 8
  %40 = icmp eq i32 %38, %39
  br i1 %40, label %76, label %41

41:                                               ; preds = %37
  %42 = atomicrmw add ptr @helpers, i32 1 seq_cst, align 4
  %43 = load atomic i32, ptr @generation seq_cst, align 64
  %44 = icmp eq i32 %43, %10
  br i1 %44, label %45, label %50

45:                                               ; preds = %41
  %46 = load atomic i32, ptr @finished seq_cst, align 64
  %47 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3) seq_cst, align 8
  %48 = icmp eq i32 %46, %47
  br i1 %48, label %50, label %49

49:                                               ; preds = %45
  call fastcc void @help(i32 noundef %6, i32 noundef %10)
  br label %50

50:                                               ; preds = %49, %45, %41
  %51 = atomicrmw sub ptr @helpers, i32 1 seq_cst, align 4
  %52 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  %53 = atomicrmw add ptr @sleepers, i32 1 seq_cst, align 4
  %54 = load atomic i32, ptr @generation seq_cst, align 64
  %55 = icmp eq i32 %54, %10
  br i1 %55, label %56, label %71

56:                                               ; preds = %50
  %57 = load atomic i32, ptr @finished seq_cst, align 64
  %58 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3) seq_cst, align 8
  %59 = icmp eq i32 %57, %58
  br i1 %59, label %71, label %60

60:                                               ; preds = %56
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %3) #13
  %61 = call i32 @clock_gettime(i32 noundef 0, ptr noundef nonnull %3) #13
  %62 = load i64, ptr %8, align 8, !tbaa !23
  %63 = add nsw i64 %62, 300000
  store i64 %63, ptr %8, align 8, !tbaa !23
  %64 = icmp sgt i64 %62, 999699999
  br i1 %64, label %65, label %69

65:                                               ; preds = %60
  %66 = add nsw i64 %62, -999700000
  store i64 %66, ptr %8, align 8, !tbaa !23
  %67 = load i64, ptr %3, align 8, !tbaa !21
  %68 = add nsw i64 %67, 1
  store i64 %68, ptr %3, align 8, !tbaa !21
  br label %69

69:                                               ; preds = %65, %60
  %70 = call i32 @pthread_cond_timedwait(ptr noundef nonnull @job_came, ptr noundef nonnull @lock, ptr noundef nonnull %3) #13
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %3) #13
  br label %71

71:                                               ; preds = %69, %56, %50
  %72 = atomicrmw sub ptr @sleepers, i32 1 seq_cst, align 4
  %73 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
  %74 = load atomic i32, ptr @generation seq_cst, align 64
  %75 = icmp eq i32 %74, %10
  br i1 %75, label %37, label %76, !llvm.loop !29

76:                                               ; preds = %71, %37, %34
  %77 = call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  %78 = atomicrmw add ptr @sleepers, i32 1 seq_cst, align 4
  %79 = load atomic i32, ptr @generation seq_cst, align 64
  %80 = icmp eq i32 %79, %10
  br i1 %80, label %81, label %85

81:                                               ; preds = %76, %81
  %82 = call i32 @pthread_cond_wait(ptr noundef nonnull @job_came, ptr noundef nonnull @lock) #13
  %83 = load atomic i32, ptr @generation seq_cst, align 64
  %84 = icmp eq i32 %83, %10
  br i1 %84, label %81, label %85, !llvm.loop !30

85:                                               ; preds = %81, %76
  %86 = atomicrmw sub ptr @sleepers, i32 1 seq_cst, align 4
  %87 = call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
  br label %88

88:                                               ; preds = %31, %9, %85
  %89 = load atomic i32, ptr @generation seq_cst, align 64
  %90 = load atomic i32, ptr @stopping seq_cst, align 4
  %91 = icmp eq i32 %90, 0
  br i1 %91, label %93, label %92

92:                                               ; preds = %88
  ret ptr null

93:                                               ; preds = %88
  %94 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 6) monotonic, align 8
  %95 = call i32 @sched_getcpu() #13
  %96 = icmp eq i32 %95, %94
  br i1 %96, label %97, label %115

97:                                               ; preds = %93
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %2) #13
  call void @llvm.memcpy.p0.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %2, ptr noundef nonnull align 8 dereferenceable(128) @usable, i64 128, i1 false), !tbaa.struct !31
  %98 = icmp ult i32 %94, 1024
  br i1 %98, label %99, label %108

99:                                               ; preds = %97
  %100 = zext i32 %94 to i64
  %101 = and i64 %100, 63
  %102 = shl nuw i64 1, %101
  %103 = xor i64 %102, -1
  %104 = lshr i64 %100, 6
  %105 = getelementptr inbounds i64, ptr %2, i64 %104
  %106 = load i64, ptr %105, align 8, !tbaa !7
  %107 = and i64 %106, %103
  store i64 %107, ptr %105, align 8, !tbaa !7
  br label %108

108:                                              ; preds = %99, %97
  %109 = call i32 @__sched_cpucount(i64 noundef 128, ptr noundef nonnull %2) #13
  %110 = icmp eq i32 %109, 0
  br i1 %110, label %114, label %111

111:                                              ; preds = %108
  %112 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull %2) #13
  %113 = call i32 @sched_setaffinity(i32 noundef 0, i64 noundef 128, ptr noundef nonnull @usable) #13
  br label %114

114:                                              ; preds = %108, %111
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %2) #13
  br label %115

115:                                              ; preds = %114, %93
  call fastcc void @work(i32 noundef %6, i32 noundef %89)
  br label %9
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
  call void @llvm.lifetime.start.p0(i64 64, ptr nonnull %2) #13
  %4 = tail call i32 (ptr, i32, ...) @open(ptr noundef nonnull @.str.1, i32 noundef 524288) #13
  %5 = icmp slt i32 %4, 0
  br i1 %5, label %25, label %6

6:                                                ; preds = %1
  %7 = call i64 @read(i32 noundef %4, ptr noundef nonnull %2, i64 noundef 63) #13
  %8 = tail call i32 @close(i32 noundef %4) #13
  %9 = icmp slt i64 %7, 1
  br i1 %9, label %25, label %10

10:                                               ; preds = %6
  %11 = getelementptr inbounds [64 x i8], ptr %2, i64 0, i64 %7
  store i8 0, ptr %11, align 1, !tbaa !32
  call void @llvm.lifetime.start.p0(i64 8, ptr nonnull %3) #13
  %12 = call i64 @strtol(ptr noundef nonnull %2, ptr noundef nonnull %3, i32 noundef 10) #13
  %13 = load ptr, ptr %3, align 8, !tbaa !33
  %14 = call i64 @strtol(ptr nocapture noundef %13, ptr noundef null, i32 noundef 10) #13
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
  call void @llvm.lifetime.end.p0(i64 8, ptr nonnull %3) #13
  br label %25

25:                                               ; preds = %23, %6, %1
  %26 = phi i32 [ %0, %1 ], [ %24, %23 ], [ %0, %6 ]
  call void @llvm.lifetime.end.p0(i64 64, ptr nonnull %2) #13
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
  br i1 %4, label %5, label %73

5:                                                ; preds = %2
  %6 = sext i32 %0 to i64
  %7 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %6, i32 1
  store atomic i32 %1, ptr %7 monotonic, align 8
  %8 = icmp sgt i32 %3, 0
  br i1 %8, label %9, label %12

9:                                                ; preds = %5
  %10 = zext i32 %1 to i64
  %11 = shl nuw i64 %10, 32
  br label %13

12:                                               ; preds = %49, %5
  store atomic i32 0, ptr %7 release, align 8
  br label %73

13:                                               ; preds = %9, %49
  %14 = phi i32 [ 0, %9 ], [ %50, %49 ]
  %15 = add nsw i32 %14, %0
  %16 = srem i32 %15, %3
  %17 = icmp eq i32 %14, 0
  %18 = sext i32 %16 to i64
  %19 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %18
  br label %20

20:                                               ; preds = %65, %13
  %21 = load atomic i64, ptr %19 acquire, align 64
  br label %22

22:                                               ; preds = %43, %20
  %23 = phi i64 [ %21, %20 ], [ %48, %43 ]
  %24 = trunc i64 %23 to i32
  %25 = lshr i32 %24, 16
  %26 = and i32 %24, 65535
  %27 = lshr i64 %23, 32
  %28 = icmp eq i64 %27, %10
  %29 = icmp ult i32 %25, %26
  %30 = select i1 %28, i1 %29, i1 false
  br i1 %30, label %31, label %49

31:                                               ; preds = %22
  br i1 %17, label %32, label %38

32:                                               ; preds = %31
  %33 = add nuw nsw i32 %25, 1
  %34 = zext i32 %33 to i64
  %35 = shl nuw nsw i64 %34, 16
  %36 = and i64 %23, 65535
  %37 = or i64 %35, %36
  br label %43

38:                                               ; preds = %31
  %39 = add nsw i32 %26, -1
  %40 = and i64 %23, 4294901760
  %41 = zext i32 %39 to i64
  %42 = or i64 %40, %41
  br label %43

43:                                               ; preds = %38, %32
  %44 = phi i64 [ %37, %32 ], [ %42, %38 ]
  %45 = or i64 %44, %11
  %46 = cmpxchg weak ptr %19, i64 %23, i64 %45 seq_cst seq_cst, align 8
  %47 = extractvalue { i64, i1 } %46, 1
  %48 = extractvalue { i64, i1 } %46, 0
  br i1 %47, label %52, label %22

49:                                               ; preds = %22
  %50 = add nuw nsw i32 %14, 1
  %51 = icmp eq i32 %50, %3
  br i1 %51, label %12, label %13, !llvm.loop !34

52:                                               ; preds = %43
  %53 = add nsw i32 %26, -1
  %54 = select i1 %17, i32 %25, i32 %53
  %55 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 3) monotonic, align 8
  %56 = load ptr, ptr @job, align 8, !tbaa !15
  %57 = load ptr, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 1), align 8, !tbaa !19
  %58 = tail call i32 %56(i32 noundef %54, ptr noundef nonnull getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 2), ptr noundef %57) #13
  %59 = icmp eq i32 %58, 0
  br i1 %59, label %61, label %60

60:                                               ; preds = %52
  store atomic i32 1, ptr @failure seq_cst, align 4
  br label %61

61:                                               ; preds = %60, %52
  %62 = atomicrmw add ptr @finished, i32 1 seq_cst, align 4
  %63 = add nsw i32 %62, 1
  %64 = icmp eq i32 %63, %55
  br i1 %64, label %66, label %65

65:                                               ; preds = %61, %66, %69
  br label %20, !llvm.loop !35

66:                                               ; preds = %61
  %67 = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %68 = icmp eq i32 %67, 0
  br i1 %68, label %65, label %69

69:                                               ; preds = %66
  %70 = tail call i32 @pthread_mutex_lock(ptr noundef nonnull @lock) #13
  %71 = tail call i32 @pthread_cond_signal(ptr noundef nonnull @job_ended) #13
  %72 = tail call i32 @pthread_mutex_unlock(ptr noundef nonnull @lock) #13
  br label %65

73:                                               ; preds = %2, %12
  ret void
}


declare i32 @pthread_cond_wait(ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @clock_gettime(i32 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind uwtable
define internal fastcc void @help(i32 noundef %0, i32 noundef %1) unnamed_addr #0 {
  %3 = alloca %struct.cpu_set_t, align 8
  %4 = alloca %struct.cpu_set_t, align 8
  %5 = alloca i32, align 4
  %6 = alloca %struct.timespec, align 8
  %7 = alloca %struct.timespec, align 8
  %8 = alloca i32, align 4
  %9 = alloca %struct.timespec, align 8
  %10 = load atomic i32, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 4) monotonic, align 4
  %11 = icmp sgt i32 %10, 0
  br i1 %11, label %12, label %103

12:                                               ; preds = %2
  %13 = getelementptr inbounds %struct.timespec, ptr %9, i64 0, i32 1
  %14 = getelementptr inbounds %struct.timespec, ptr %7, i64 0, i32 1
  %15 = getelementptr inbounds %struct.timespec, ptr %6, i64 0, i32 1
  %16 = zext i32 %0 to i64
  %17 = zext i32 %10 to i64
  br label %18

18:                                               ; preds = %12, %100
  %19 = phi i64 [ 0, %12 ], [ %101, %100 ]
  %20 = icmp eq i64 %19, %16
  br i1 %20, label %100, label %21

21:                                               ; preds = %18
  %22 = getelementptr inbounds [128 x %struct.share_t], ptr @shares, i64 0, i64 %19, i32 1
  %23 = load atomic i32, ptr %22 acquire, align 8
  %24 = icmp eq i32 %23, %1
  br i1 %24, label %25, label %100

25:                                               ; preds = %21
  %26 = icmp eq i64 %19, 0
  br i1 %26, label %27, label %29

27:                                               ; preds = %25
  %28 = load atomic i64, ptr getelementptr inbounds (%struct.anon.0, ptr @job, i64 0, i32 5) seq_cst, align 8
  br label %32

29:                                               ; preds = %25
  %30 = getelementptr inbounds [128 x i64], ptr @workers, i64 0, i64 %19
  %31 = load i64, ptr %30, align 8, !tbaa !7
  br label %32

32:                                               ; preds = %29, %27
  %33 = phi i64 [ %28, %27 ], [ %31, %29 ]
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %8) #13
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %9) #13
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %9, i8 0, i64 16, i1 false)
  %34 = call i32 @pthread_getcpuclockid(i64 noundef %33, ptr noundef nonnull %8) #13
  %35 = icmp eq i32 %34, 0
  br i1 %35, label %36, label %43

36:                                               ; preds = %32
  %37 = load i32, ptr %8, align 4, !tbaa !3
  %38 = call i32 @clock_gettime(i32 noundef %37, ptr noundef nonnull %9) #13
  %39 = load i64, ptr %9, align 8, !tbaa !21
  %40 = load i64, ptr %13, align 8, !tbaa !23
  %41 = mul nsw i64 %39, 1000000000
  %42 = add nsw i64 %41, %40
  br label %43

43:                                               ; preds = %36, %32
  %44 = phi i64 [ %42, %36 ], [ 0, %32 ]
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %9) #13
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %8) #13
  %45 = load atomic i32, ptr %22 acquire, align 8
  %46 = icmp eq i32 %45, %1
  br i1 %46, label %47, label %100

47:                                               ; preds = %43, %65
  %48 = phi i32 [ %67, %65 ], [ 1, %43 ]
  %49 = phi i64 [ %66, %65 ], [ 0, %43 ]
  call void @autotune_spin_hint() #13
  %50 = load atomic i32, ptr %22 acquire, align 8
  %51 = icmp eq i32 %50, %1
  %52 = and i32 %48, 63
  %53 = icmp eq i32 %52, 0
  %54 = select i1 %51, i1 %53, i1 false
  br i1 %54, label %55, label %65

55:                                               ; preds = %47
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %7) #13
  %56 = call i32 @clock_gettime(i32 noundef 1, ptr noundef nonnull %7) #13
  %57 = load i64, ptr %7, align 8, !tbaa !21
  %58 = mul nsw i64 %57, 1000000000
  %59 = load i64, ptr %14, align 8, !tbaa !23
  %60 = add nsw i64 %58, %59
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %7) #13
  %61 = icmp eq i64 %49, 0
  %62 = add nsw i64 %60, 20000
  %63 = select i1 %61, i64 %62, i64 %49
  %64 = icmp sgt i64 %60, %63
  br i1 %64, label %68, label %65

65:                                               ; preds = %55, %47
  %66 = phi i64 [ %49, %47 ], [ %63, %55 ]
  %67 = add nuw nsw i32 %48, 1
  br i1 %51, label %47, label %100, !llvm.loop !36

68:                                               ; preds = %55
  call void @llvm.lifetime.start.p0(i64 4, ptr nonnull %5) #13
  call void @llvm.lifetime.start.p0(i64 16, ptr nonnull %6) #13
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %6, i8 0, i64 16, i1 false)
  %69 = call i32 @pthread_getcpuclockid(i64 noundef %33, ptr noundef nonnull %5) #13
  %70 = icmp eq i32 %69, 0
  br i1 %70, label %71, label %78

71:                                               ; preds = %68
  %72 = load i32, ptr %5, align 4, !tbaa !3
  %73 = call i32 @clock_gettime(i32 noundef %72, ptr noundef nonnull %6) #13
  %74 = load i64, ptr %6, align 8, !tbaa !21
  %75 = load i64, ptr %15, align 8, !tbaa !23
  %76 = mul nsw i64 %74, 1000000000
  %77 = add nsw i64 %76, %75
  br label %78

78:                                               ; preds = %68, %71
  %79 = phi i64 [ %77, %71 ], [ 0, %68 ]
  call void @llvm.lifetime.end.p0(i64 16, ptr nonnull %6) #13
  call void @llvm.lifetime.end.p0(i64 4, ptr nonnull %5) #13
  %80 = sub nsw i64 %79, %44
  %81 = icmp slt i64 %80, 5000
  br i1 %81, label %82, label %100

82:                                               ; preds = %78
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %3) #13
  call void @llvm.lifetime.start.p0(i64 128, ptr nonnull %4) #13
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(128) %4, i8 0, i64 128, i1 false)
  %83 = call i32 @sched_getcpu() #13
  %84 = icmp ult i32 %83, 1024
  br i1 %84, label %85, label %93

85:                                               ; preds = %82
  %86 = zext i32 %83 to i64
  %87 = and i64 %86, 63
  %88 = shl nuw i64 1, %87
  %89 = lshr i64 %86, 6
  %90 = getelementptr inbounds i64, ptr %4, i64 %89
  %91 = load i64, ptr %90, align 8, !tbaa !7
  %92 = or i64 %91, %88
  store i64 %92, ptr %90, align 8, !tbaa !7
  br label %93

93:                                               ; preds = %85, %82
  %94 = call i32 @pthread_getaffinity_np(i64 noundef %33, i64 noundef 128, ptr noundef nonnull %3) #13
  %95 = icmp eq i32 %94, 0
  br i1 %95, label %96, label %99

96:                                               ; preds = %93
  %97 = call i32 @pthread_setaffinity_np(i64 noundef %33, i64 noundef 128, ptr noundef nonnull %4) #13
  %98 = call i32 @pthread_setaffinity_np(i64 noundef %33, i64 noundef 128, ptr noundef nonnull %3) #13
  br label %99

99:                                               ; preds = %93, %96
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %4) #13
  call void @llvm.lifetime.end.p0(i64 128, ptr nonnull %3) #13
  br label %103

100:                                              ; preds = %65, %43, %78, %18, %21
  %101 = add nuw nsw i64 %19, 1
  %102 = icmp eq i64 %101, %17
  br i1 %102, label %103, label %18, !llvm.loop !37

103:                                              ; preds = %100, %2, %99
  ret void
}

; Function Attrs: mustprogress nocallback nofree nounwind willreturn memory(argmem: write)
declare void @llvm.memset.p0.i64(ptr nocapture writeonly, i8, i64, i1 immarg) #10

; Function Attrs: nounwind
declare i32 @pthread_getcpuclockid(i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_getaffinity_np(i64 noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_setaffinity_np(i64 noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

declare i32 @pthread_cond_timedwait(ptr noundef, ptr noundef, ptr noundef) local_unnamed_addr #1

; Function Attrs: nounwind
declare i32 @sched_setaffinity(i32 noundef, i64 noundef, ptr noundef) local_unnamed_addr #6

; Function Attrs: nounwind
declare i32 @pthread_cond_signal(ptr noundef) local_unnamed_addr #6

; Function Attrs: mustprogress nofree nosync nounwind willreturn memory(none)
declare i64 @pthread_self() local_unnamed_addr #11

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smin.i32(i32, i32) #12

; Function Attrs: nocallback nofree nosync nounwind speculatable willreturn memory(none)
declare i32 @llvm.smax.i32(i32, i32) #12

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
attributes #10 = { mustprogress nocallback nofree nounwind willreturn memory(argmem: write) }
attributes #11 = { mustprogress nofree nosync nounwind willreturn memory(none) }
attributes #12 = { nocallback nofree nosync nounwind speculatable willreturn memory(none) }
attributes #13 = { nounwind }
attributes #14 = { nounwind willreturn memory(none) }

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
!16 = !{!"", !17, i64 0, !17, i64 8, !18, i64 16, !5, i64 32, !5, i64 36, !5, i64 40, !5, i64 48}
!17 = !{!"any pointer", !5, i64 0}
!18 = !{!"", !17, i64 0, !4, i64 8}
!19 = !{!16, !17, i64 8}
!20 = !{!16, !4, i64 24}
!21 = !{!22, !8, i64 0}
!22 = !{!"timespec", !8, i64 0, !8, i64 8}
!23 = !{!22, !8, i64 8}
!24 = distinct !{!24, !10}
!25 = distinct !{!25, !10}
!26 = distinct !{!26, !10}
!27 = distinct !{!27, !10}
!28 = distinct !{!28, !10}
!29 = distinct !{!29, !10}
!30 = distinct !{!30, !10}
!31 = !{i64 0, i64 128, !32}
!32 = !{!5, !5, i64 0}
!33 = !{!17, !17, i64 0}
!34 = distinct !{!34, !10}
!35 = distinct !{!35, !10}
!36 = distinct !{!36, !10}
!37 = distinct !{!37, !10}
